#include <algorithm>
#include <array>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/models/activation_name.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/models/rope_scaling.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::cli {
namespace {

using Model = lm::ModelConfig;
using Experts = layers::Experts;
using Data = DataConfig;
using Train = TrainConfig;
using Rule = OptimizerSettings;
using Plan = PlanConfig;
using Parallel = ParallelConfig;
using Memory = MemoryConfig;
using Run = RunOptions;
using Text = Option::Text;

constexpr double kMost = 1e15;  // above every useful size, below the first integer that a double cannot hold
constexpr auto kSame = Option::Same::over_resumes, kRanks = Option::Same::on_all_ranks, kOwn = Option::Same::nowhere;

constexpr const char *kAsUsual = "usual", *kChosen = "chosen";
constexpr std::int64_t kGated = 2;  // inputs of an activation function with gates

struct Number {
  double low, high;
  bool open_low = false, open_high = false;
};
constexpr Number kPositive{1, kMost};
constexpr Number kCount{0, kMost};
constexpr Number kAbove0{0, kMost, true};
constexpr Number kFraction{0, 1, false, true};  // [0, 1)

Option number(std::string_view section, std::string_view key, ConfigField field, Number n, Option::Same same,
              std::string_view help) {
  return {.key = key,
          .section = section,
          .field = std::move(field),
          .help = help,
          .same = same,
          .low = n.low,
          .high = n.high,
          .open_low = n.open_low,
          .open_high = n.open_high,
          .text = Text::any,
          .choices = {}};
}
Option text(std::string_view section, std::string_view key, ConfigField field, Text kind, Option::Same same,
            std::string_view help, std::vector<std::string_view> choices = {}) {
  return {.key = key,
          .section = section,
          .field = std::move(field),
          .help = help,
          .same = same,
          .low = 0,
          .high = 0,
          .open_low = false,
          .open_high = false,
          .text = kind,
          .choices = std::move(choices)};
}

// A setting that is one of its type's words.
template <class Part, HasWords T>
Option word(std::string_view section, std::string_view key, T Part::*field, Option::Same same, std::string_view help) {
  std::vector<std::string_view> words;
  for (const auto& one : kWords<T>) words.push_back(one.word);
  return text(section, key, field, Text::choice, same, help, std::move(words));
}
// A number of layers, with words for none and for all of them.
Option layer_count(std::string_view section, std::string_view key, std::optional<std::uint32_t> Plan::*field, Option::Same same,
                   std::string_view help, std::string_view none, std::string_view all) {
  const auto parse = [=](const std::string& given) -> std::optional<std::uint32_t> {
    if (given == "auto") return std::nullopt;
    if (given == none) return 0;
    return given == all ? kAllLayers : static_cast<std::uint32_t>(std::stoul(given));
  };
  const auto print = [=](std::optional<std::uint32_t> number) {
    return !number                 ? "auto"
           : *number == 0          ? std::string(none)
           : *number == kAllLayers ? std::string(all)
                                   : fmt::format("{}", *number);
  };
  return text(section, key, {field, parse, print}, Text::layers, same, help, {"auto", none, all});
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const auto* const family : lm::families()) names.push_back(*family->name);
  return names;
}

// Settings for which nothing means: as usual in the family.
ConfigField cap(std::string_view key, std::optional<double> Model::*field) {
  constexpr double kUsual = -1;
  const auto parse = [=](double given) {
    if (given < 0 && given != kUsual)
      throw base::Refused(
          fmt::format("--{} {}: a cap is positive, 0 for none, or -1 as usual in the model family", key, given));
    return given < 0 ? std::nullopt : std::optional(given);
  };
  return {field, parse, [=](const auto& number) { return number.value_or(kUsual); }};
}
ConfigField bias(std::optional<bool> Model::*field) {
  return {field, [](bool given) { return given ? std::optional(true) : std::nullopt; },
          [](const auto& has) { return has.value_or(false); }};
}
// As for a gated MLP; model_config() takes the function without gates where the family has none.
ConfigField activation() {
  return {&Model::activation, [](const std::string& given) { return lm::activation_named(given, kGated); },
          [](const auto& kind) { return kind ? std::string(lm::name_of(*kind)) : kAsUsual; }};
}
// A value that a function of the library reads, whose errors do not name the option.
template <class T, class Parse, class Print>
ConfigField own_text(std::string_view key, T Model::*field, Parse parse, Print print) {
  const auto named = [=](const std::string& given) {
    try {
      return parse(given);
    } catch (const Error& error) {
      throw Error(fmt::format("--{}: {}", key, error.what()), error);
    }
  };
  return {field, named, print};
}
std::optional<layers::RotatedBlocks> parse_rotated(const std::string& given) {
  if (given == kAsUsual) return std::nullopt;
  return layers::RotatedBlocks::parse(given);
}
std::string to_text(const std::optional<layers::RotatedBlocks>& blocks) {
  return blocks ? layers::to_string(*blocks) : kAsUsual;
}
// The name of a family, or a directory, which apply_model_dir() reads.
ConfigField family() {
  return {
      [](const RunConfig& c) { return c.run.model_dir.empty() ? std::string(*c.model.family.get().name) : c.run.model_dir; },
      [](RunConfig& c, const std::string& given) {
        const auto names = family_names();
        const bool named = std::ranges::find(names, given) != names.end();
        c.run.model_dir = named ? "" : given;
        if (named) c.model.family = lm::family_named(given);
      }};
}

std::optional<UpdatePlace> parse_update(const std::string& given) {
  if (given == "auto") return std::nullopt;
  return parse_update_place(given);
}
std::optional<std::uint32_t> parse_depth(const std::string& given) {
  if (given == "auto") return std::nullopt;
  return static_cast<std::uint32_t>(std::stoul(given));
}

template <class Names>
std::vector<std::string_view> names_of(const Names& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

// "rope_theta in a config.json of Hugging Face; 0: 10000", with the keys and usual values of all families that have the number.
std::string usual_in_families(const lm::ConfigNumber* (*number_of)(const lm::Family&)) {
  std::vector<std::string> keys, values;
  const auto add_once = [](std::vector<std::string>& all, std::string one) {
    if (std::ranges::find(all, one) == all.end()) all.push_back(std::move(one));
  };
  for (const auto* const family : lm::families())
    if (const auto* const number = number_of(*family)) {
      add_once(keys, std::string(lm::word_of(number->keys)));
      add_once(values, fmt::format("{}", *number->usual));
    }
  return fmt::format("{} in a config.json of Hugging Face; 0: {}{}", fmt::join(keys, " or "), fmt::join(values, " or "),
                     values.size() > 1 ? ", as usual in the model family" : "");
}

std::vector<Option> make_table() {
  // The table refers to its texts, so they must outlive it.
  static const auto rope_base =
      fmt::format("base of rotary positions ({}), {}",
                  lm::names_of_families("and", [](const auto& family) { return lm::rotary_base(family) != nullptr; }),
                  usual_in_families(lm::rotary_base));
  static const auto norm_eps =
      fmt::format("added to the variance in norms, {}", usual_in_families([](const auto& family) { return &family.norm_eps; }));
  static const auto schedules = fmt::format("{}|auto|FILE", fmt::join(names_of(pipeline::all_orders()), "|"));
  return {
      text("model", "data", &Data::files, Text::required, kSame,
           "files with the training text; several sources are mixed by weights, as in 7 web.bin 3 code.bin: each number is the "
           "weight of the files behind it")
          .takes("FILE")
          .common("text, token ids or conversations to train on"),
      text("model", "model", family(), Text::model, kSame,
           "model family; or a directory of Hugging Face's library, whose config.json and weights are used", family_names())
          .common("family such as llama, or directory of a model"),
      number("model", "layers", &Model::layers, kPositive, kSame, "transformer blocks"),
      number("model", "hidden", &Model::hidden, kPositive, kSame, "width of the residual stream"),
      number("model", "heads", &Model::heads, kPositive, kSame, "attention heads"),
      number("model", "kv-heads", &Model::kv_heads, kCount, kSame, "key and value heads; 0: as many as --heads"),
      number("model", "head-dim", &Model::head_size, kCount, kSame,
             "width of an attention head; 0: --hidden divided by --heads")
          .fact(),
      number("model", "ffn", &Model::ffn, kCount, kSame,
             "width of the feed-forward part; 0: the usual width of the model family"),
      number("model", "seq-len", &Model::seq_len, kPositive, kSame, "tokens in a sequence").common(),
      number("model", "vocab", &Model::vocab, {2, 2147483647.0}, kSame, "size of the vocabulary; every token is below it"),
      number("model", "rope-base", &Model::rope_theta, {0, kMost}, kSame, rope_base).fact(),
      text("model", "rope-scaling",
           own_text("rope-scaling", &Model::rope_scaling, lm::parse_rope_scaling,
                    [](const Rotary& scaling) { return lm::to_text(scaling); }),
           Text::required, kSame,
           "how the angles of rotary positions are changed for long sequences, as rope_scaling in a config.json: none, "
           "linear:factor=F, dynamic:factor=F,original=N, llama3:factor=F,low=L,high=H,original=N or yarn:factor=F,original=N")
          .takes("none|KIND:KEY=VALUE,...")
          .fact(),
      number("model", "rope-fraction", &Model::rope_fraction, {0, 1}, kSame,
             "the part of each head's elements that rotary positions rotate, its first ones")
          .fact(),
      text(
          "model", "rope-layers", own_text("rope-layers", &Model::rotated_blocks, parse_rotated, to_text), Text::required,
          kSame,
          "which layers rotary positions rotate: 1 is all; a list such as 1,1,1,0 is repeated over the layers; usual: as usual "
          "in the model family")
          .takes("usual|N,N,...")
          .fact(),
      number(
          "model", "window-rope-base", &Model::window_rope_theta, {0, kMost}, kSame,
          "base of rotary positions in layers with a --window, if it is another one (rope_local_base_freq in a config.json); "
          "0: as usual in the model family")
          .fact(),
      number("model", "norm-eps", &Model::norm_eps, kFraction, kSame, norm_eps).fact(),
      number(
          "model", "query-scalar", &Model::query_scalar, {0, kMost}, kSame,
          "number by whose square root attention divides its scores (query_pre_attn_scalar in a config.json); 0: the width of "
          "a head")
          .fact(),
      number("model", "attention-cap", cap("attention-cap", &Model::attention_cap), {-1, kMost}, kSame,
             "attention's scores s become cap · tanh(s / cap); 0: they are not capped; -1: as usual in the model family")
          .fact(),
      number("model", "logit-cap", cap("logit-cap", &Model::logit_cap), {-1, kMost}, kSame,
             "the same for the output head's logits")
          .fact(),
      text("model", "activation", activation(), Text::choice, kSame,
           "function of the feed-forward part (hidden_act in a config.json); usual: as usual in the model family",
           {kAsUsual, "silu", "gelu", "gelu_pytorch_tanh"})
          .fact(),
      text("model", "attention-bias", bias(&Model::attention_bias), Text::any, kSame,
           "give attention's four products biases (attention_bias in a config.json)")
          .fact(),
      text("model", "mlp-bias", bias(&Model::mlp_bias), Text::any, kSame,
           "give the feed-forward part's products biases (mlp_bias in a config.json)")
          .fact(),
      text("model", "untied", {&Model::tied, std::logical_not<bool>(), std::logical_not<bool>()}, Text::any, kSame,
           "give the output head its own weights, not those of the embedding"),
      number(
          "model", "vocab-tiles", &Model::vocab_tiles, {0, 65536}, kSame,
          "parts of the vocabulary's table that are used one after the other; a device budget must hold one of them, and the "
          "head computes its logits twice; 0: as few as fit"),
      word(
          "model", "tiles", &Plan::tiles, kRanks,
          "large layers in tiles where they are not given (the flags that end with -tiles): auto: none where all fits, else as "
          "few as fit; off: none"),
      number("model", "head-rows", &Model::head_rows, {0, static_cast<double>(layers::kMostHeadRows)}, kSame,
             "rows of a micro-batch whose logits the output head makes at a time; more of them use the table of the vocabulary "
             "less often, and need more device memory; 0: on the CPU those of 64 MiB, on a GPU 4096, or fewer if these do not "
             "fit"),
      number("model", "mlp-tiles", &Model::mlp_tiles, {0, 65536}, kSame,
             "parts of each feed-forward layer's inner features that are used one after the other; a device budget must hold "
             "one of them, and the first product is computed twice; 0: as few as fit"),
      number("model", "mlp-row-tiles", &Model::mlp_row_tiles, {0, 65536}, kSame,
             "parts of a micro-batch's positions that go through each feed-forward layer one after the other; a device budget "
             "must hold the inner activations of one of them; 0: as few as fit"),
      number("model", "attention-tiles", &Model::attention_tiles, {0, 65536}, kSame,
             "parts of the matrices of q, k, v and of attention's output that are used one after the other; a device budget "
             "must hold one of them; 0: as few as fit"),
      text("model", "window",
           {&Model::window, layers::Windows::parse, [](const layers::Windows& window) { return layers::to_string(window); }},
           Text::windows, kSame,
           "sliding window: each position attends to so many, itself among them; 0: to all before it; a list such as 512,512,0 "
           "is repeated over the layers")
          .takes("N,N,..."),
      word("model", "skips", &Model::skips, kSame,
           "skip connections; u: the output of block i, times learned weights, is added to the input of the i-th "
           "block from the end"),
      number("model", "experts", &Experts::count, {0, 65536}, kSame,
             "experts in each block's feed-forward part, each of width --ffn; 0: no mixture of experts"),
      number("model", "experts-per-token", &Experts::chosen, {1, 65536}, kSame, "experts that the router chooses for a token"),
      number("model", "shared-experts", &Experts::shared, {0, 1024}, kSame, "further experts, which take all tokens"),
      number("model", "expert-capacity", &Experts::capacity_factor, kCount, kSame,
             "rows that an expert takes of a micro-batch, times the rows that it would have if all were chosen equally often; "
             "later tokens are dropped; 0: no limit"),
      number("model", "router-aux-loss", &Experts::balance_loss, kCount, kSame,
             "weight of the loss that makes the router choose all experts equally often"),
      number("model", "router-z-loss", &Experts::square_loss, kCount, kSame,
             "weight of the loss that keeps the router's logits small"),
      text("model", "router-gates",
           {&Experts::renormalise, [](const std::string& given) { return given == kChosen; },
            [](bool chosen) { return std::string(chosen ? kChosen : "all"); }},
           Text::choice, kSame, "gates of a token's experts: their probabilities among the chosen experts, or among all",
           {kChosen, "all"}),
      word("model", "data-format", &Data::format, kSame,
           "format of the files: text, whose tokens a tokenizer makes once; bytes, text whose bytes are the tokens; token ids "
           "as "
           "little-endian unsigned integers, with llm.c after its header; or jsonl, conversations of which the answers are "
           "learned; auto: what the files are"),
      word("model", "on-bad-line", &Data::on_bad_line, kSame,
           "for --data-format jsonl, a line that is no conversation: stop, with its number; or skip, and say how many"),
      text("model", "tokenizer", &Data::tokenizer, Text::any, kRanks,
           "tokenizer.json or tokenizer.model of the data: jsonl needs one, and runs of token ids keep it for generate, chat "
           "and ckpt export; "
           "empty: the one in the directory of --model or --init-from")
          .takes("FILE"),
      text("model", "template-date", &Data::template_date, Text::any, kSame,
           "for --data-format jsonl: the day, as 2026-11-26, that strftime_now of a chat template tells in all steps; empty: a "
           "template has no strftime_now")
          .takes("DATE"),
      number("model", "document-separator", &Data::document_separator, {-1, 2147483646.0}, kSame,
             "id of the token that ends a document: attention, positions and losses do not cross it; -1: each sequence is one "
             "document"),
      text("model", "init-from", &Run::init_from, Text::any, kRanks,
           "safetensors file, or directory with such files, of the initial weights")
          .takes("PATH"),
      text("model", "save", &Run::save, Text::any, kRanks, "safetensors file to write the final weights to").takes("FILE"),
      word("model", "dtype", &Model::dtype, kSame, "type of weights and activations; bf16 and fp16 keep fp32 master weights")
          .common("type of weights and activations"),
      word("model", "products", &Model::products, kSame,
           "what a block's matrices multiply: numbers of --dtype, or with --dtype bf16 fp8: weights and activations rounded to "
           "e4m3 and gradients to e5m2, each with the scale of its whole tensor"),

      number("train", "batch-size", &Train::batch_size, kPositive, kSame, "sequences in a micro-batch").common(),
      number("train", "grad-accumulation", &Train::grad_accumulation, kPositive, kSame, "micro-batches in a step").common(),
      number("train", "epochs", &Train::epochs, {0, kMost}, kRanks,
             "how often all of the data is trained on, instead of --steps; 0: --steps says how long")
          .common("how often through the data, instead of --steps"),
      number("train", "steps", &Train::steps, kPositive, kRanks, "training steps in all, each with one update of the weights")
          .common("training steps in all"),
      text("train", "optimizer", &Train::optimizer, Text::choice, kSame, "algorithm that updates the weights",
           names_of(optimizers())),
      text("train", "recipe", &Train::recipe, Text::choice, kSame, "number formats of weights, gradients and optimizer states",
           names_of(rules::recipes())),
      number("train", "lr", &Train::lr, kAbove0, kSame, "highest learning rate").common(),
      word("train", "lr-schedule", &Train::lr_schedule, kSame, "how the learning rate changes after the warm-up"),
      number("train", "min-lr", &Train::min_lr, kCount, kSame, "learning rate at the end of the schedule"),
      number("train", "warmup", &Train::warmup, kCount, kSame, "steps in which the learning rate rises linearly to --lr"),
      number("train", "beta1", &Rule::beta1, kFraction, kSame, "decay rate of the first moment"),
      number("train", "beta2", &Rule::beta2, kFraction, kSame, "decay rate of the second moment"),
      number("train", "momentum", &Rule::momentum, kFraction, kSame,
             "sgd and muon: share of the velocity that is kept; with 0 sgd has no state"),
      text("train", "nesterov", &Rule::nesterov, Text::any, kSame, "sgd and muon: use Nesterov momentum"),
      number("train", "eps", &Rule::eps, kAbove0, kSame, "added to the square root of the second moment"),
      number("train", "weight-decay", &Rule::weight_decay, kCount, kSame, "weight decay, except of norms and biases"),
      text("train", "param-groups", &Train::param_groups, Text::any, kSame,
           "learning rate, decay and clip norm for parameters whose names match: \"REGEX:rate=0.1,decay=0,clip=1; ...\"; rate "
           "and "
           "decay multiply --lr and --weight-decay")
          .takes("GROUPS"),
      text("train", "freeze", &Train::freeze, Text::any, kSame,
           "parameters that stay as they are, without gradients and optimizer states: names of parameters or layers, or their "
           "ends, separated by commas, in which * is any text: \"embed*,layers.0.*\"")
          .takes("NAMES"),
      number("train", "lora-rank", &Train::lora_rank, {0, 65536}, kSame,
             "train low-rank adapters (LoRA) of this rank, and freeze all other parameters; 0: no adapters")
          .common("train only adapters (LoRA) of this rank; 0: none"),
      number("train", "lora-alpha", &Train::lora_alpha, kAbove0, kSame,
             "an adapter's result is multiplied by --lora-alpha divided by --lora-rank"),
      text("train", "lora-targets", &Train::lora_targets, Text::required, kSame,
           "the products of each block that have adapters, separated by commas: q, k, v, o, gate, up, down; or all")
          .takes("NAMES"),
      text("train", "init-adapter", &Run::init_adapter, Text::any, kRanks,
           "directory of the adapters' first weights, as Hugging Face's PEFT writes it")
          .takes("DIR"),
      number("train", "grad-clip", &Train::grad_clip, kCount, kSame,
             "greatest norm of the gradients of all parameters that no group clips; 0: no clipping"),
      word("train", "on-non-finite", &Train::on_non_finite, kRanks,
           "when a loss or a gradient norm is infinite or NaN: end the run, or skip the update and continue"),
      text("train", "loss-scale", &Train::loss_scale, Text::any, kRanks,
           "factor on the gradients, which the update divides out: off, a power of two, or dynamic, which is halved after an "
           "overflow, whose step is skipped; auto: dynamic with --dtype fp16, else off")
          .takes("auto|off|dynamic|FACTOR"),
      word("train", "order", &Plan::order, kRanks,
           "compute micro-batch by micro-batch, or layer by layer over all micro-batches; auto: the faster one"),
      number("train", "group", &Plan::group, kCount, kRanks, "micro-batches in a group of the vertical order; 0: all"),
      layer_count(
          "train", "recompute", &Plan::recompute, kRanks,
          "layers whose backward recomputes activations instead of keeping them: none, layer (every layer), or a number",
          "none", "layer"),
      layer_count("train", "activations", &Plan::activations, kRanks,
                  "layers whose activations move to the host right after the forward: keep (none), offload (all), or a number; "
                  "kept ones move only when room is needed",
                  "keep", "offload"),
      text(
          "train", "update", {&Plan::update, parse_update, [](const auto& place) { return place ? to_text(*place) : "auto"; }},
          Text::share, kRanks,
          "where updates run, or the share of them that runs on the device: of all layers, and after a comma of the first one, "
          "whose update comes last in a step; auto: the fastest place",
          {"auto", "host", "device"}),
      layer_count("train", "deferred-updates", &Plan::deferred_updates, kRanks,
                  "without clipping, layers that are updated in the next step, before their forward, instead of in the "
                  "backward, because the backward cannot hide all updates: none, all, or a number of them, evenly spread; with "
                  "clipping, all but the early ones are",
                  "none", "all"),
      layer_count(
          "train", "early-updates", &Plan::early_updates, kRanks,
          "with clipping, layers that are updated in the backward, before the norm is known; if the norm clips, the next "
          "step takes these updates back exactly, at the cost of memory for the state before them: none, all, or a number "
          "of them, evenly spread; auto: what is fastest, only with a GPU",
          "none", "all"),
      number("train", "seed", &Train::seed, {0, 9.2e18}, kSame, "seed of the initial weights and of the order of the data"),
      number("train", "threads", &Run::threads, {0, 4096}, kOwn,
             "compute threads; 0: one for each core that this process may use, with a GPU only the cores of its NUMA node, "
             "less two (of "
             "fewer than eight, a quarter) for the threads that issue to it"),
      number("train", "eval-interval", &Train::eval_interval, kCount, kRanks, "steps between evaluations; 0: at the end only"),
      number("train", "eval-batches", &Train::eval_batches, kCount, kRanks,
             "micro-batches in an evaluation, of each source of the data; 0: no evaluations, and nothing is held out for them"),
      text("train", "eval-data", &Data::eval_files, Text::required, kRanks,
           "files to evaluate on, of the form of --data, with weights as there; then nothing is held out, and all of --data is "
           "trained on"),
      text("train", "eval-first", &Train::eval_first, Text::any, kRanks, "evaluate before the first step, too"),

      number("parallel", "dp", &Parallel::dp, {0, 65536}, kSame,
             "data-parallel ranks, which train on different micro-batches; 0: as many as were launched, or one"),
      number("parallel", "zero", &Parallel::zero, {0, 3}, kSame,
             "what the data-parallel ranks shard: 0 nothing, 1 optimizer states and master weights, 2 also gradients, 3 also "
             "weights"),
      number("parallel", "shard-group", &Parallel::shard_group, {0, 65536}, kSame,
             "ranks in a group that shards one copy of the state; every group has a copy; 0: one group of all ranks"),
      text("parallel", "canonical-reduction", &Parallel::canonical_reduction, Text::any, kSame,
           "add gradients micro-batch by micro-batch, so that the bits of the result do not depend on --dp"),
      word(
          "parallel", "sum-order", &Parallel::sum_order, kSame,
          "the order in which gradients of several machines are added: first on each machine, or all ranks in ascending order, "
          "which sends each machine more bytes; on one machine both are the same"),
      number(
          "parallel", "ranks-per-machine", &Parallel::ranks_per_machine, {0, 65536}, kRanks,
          "so many neighbouring ranks count as one machine, so that a few ranks add in the order of many machines; 0: as they "
          "are"),
      word("parallel", "compress-gradients", &Parallel::compress_gradients, kSame,
           "wire dtype of gradients between ranks: unchanged, bf16, or 8 bits in blocks; the sums are fp32"),
      text("parallel", "compress-weights", &Parallel::compress_weights, Text::choice, kSame,
           "wire dtype of weights that are gathered before use: unchanged, or 8 bits in blocks", {"none", "int8"}),
      number(
          "parallel", "sync-interval", &Parallel::sync_interval, kPositive, kSame,
          "local SGD: steps between averages of the ranks' weights; between them each rank updates its own copy; 1: no local "
          "SGD, gradients are reduced in every step"),
      number("parallel", "pp", &Parallel::pp, {1, 65536}, kSame, "pipeline-parallel ranks, which hold different layers"),
      text(
          "parallel", "schedule", &Parallel::schedule, Text::required, kSame,
          "pipeline schedule: layerwise, gpipe, 1f1b, interleaved, zb-h1, zb-v, chimera, dualpipe-v, pipedream, pipedream-2bw, "
          "a file with one, or auto, which searches for the fastest")
          .takes(schedules),
      number("parallel", "virtual-stages", &Parallel::virtual_stages, {0, 65536}, kSame,
             "stages on each rank, of the interleaved schedule; 0: the schedule's usual number"),
      number("parallel", "drain-interval", &Parallel::drain_interval, {1, 65536}, kSame,
             "pipedream and pipedream-2bw: steps after which all ranks wait until the pipeline is empty"),
      text("parallel", "stage-layers", &Parallel::stage_layers, Text::any, kRanks,
           "number of layers in each stage, such as 3,4,4,3; empty: balanced by their costs")
          .takes("N,N,..."),
      number("parallel", "tp", &Parallel::tp, {1, 65536}, kSame, "tensor-parallel ranks, which have a part of each layer"),
      word("parallel", "tp-mode", &Parallel::tp_mode, kSame,
           "how matrices are split over the tensor ranks: columns of them (1d), or blocks, on a square of ranks (2d), on "
           "--tp-depth squares (2.5d) or on a cube (3d)"),
      number("parallel", "tp-depth", &Parallel::tp_depth, {1, 65536}, kSame,
             "with --tp-mode 2.5d: squares of tensor ranks, which have the same weights and other sequences"),
      text("parallel", "sp", &Parallel::sp, Text::any, kSame,
           "sequence parallelism: between layers each tensor rank keeps its share of the positions"),
      number("parallel", "tp-overlap", &Parallel::tp_overlap, {1, 65536}, kSame,
             "with --sp: pieces of rows in which tensor ranks exchange, each beside the product of another one; 1: all rows at "
             "once"),
      number("parallel", "cp", &Parallel::cp, {1, 65536}, kSame,
             "context-parallel ranks, which share the positions of each sequence"),
      word("parallel", "cp-mode", &Parallel::cp_mode, kSame,
           "what context-parallel ranks exchange for attention: heads (ulysses), keys and values from rank to rank (ring), "
           "heads between neighbours and keys and values round rings (both), or first keys and then values, with all scores "
           "written down (two-rings)"),
      number("parallel", "cp-ring", &Parallel::cp_ring, {2, 65536}, kSame, "ranks of a ring, with --cp-mode both"),
      number("parallel", "ep", &Parallel::ep, {1, 65536}, kSame,
             "expert-parallel ranks, which train on different sequences and have different experts of each mixture"),

      text("memory", "device", &Memory::device, Text::device, kOwn,
           "where layers are computed: cpu or cuda:N; auto: the first GPU that can be used, else the CPU")
          .takes("auto|cpu|cuda:N")
          .common("where layers are computed"),
      text(
          "memory", "device-memory", &Memory::device_memory, Text::size, kOwn,
          "budget of the device tier; auto: the GPU's free memory, less 5 % of its whole memory or what CUDA's libraries need, "
          "whichever is more (with --device cpu: 95 % of half the free memory, after the room that the program needs)")
          .common("budget of the device tier"),
      text("memory", "host-memory", &Memory::host_memory, Text::size, kOwn,
           "budget of the host tier; auto: 85 % of the available memory (with --device cpu: of the other half)")
          .common("budget of the host tier"),
      text("memory", "nvme-path", &Memory::nvme_path, Text::required, kOwn,
           "folder for the disk tier; repeatable, one for each disk; without it there is no disk tier")
          .takes("DIR")
          .common("folder for the disk tier; repeatable"),
      text("memory", "nvme-limit", &Memory::nvme_limit, Text::size, kOwn, "budget of the disk tier, of all paths together"),
      text("memory", "prefetch-depth",
           {&Plan::prefetch_depth, parse_depth, [](const auto& depth) { return depth ? fmt::format("{}", *depth) : "auto"; }},
           Text::depth, kRanks, "how many layer computations ahead data is loaded")
          .takes("auto|N"),

      text("run", "out-dir", &Run::out_dir, Text::required, kOwn, "the run directory").takes("DIR").common(),
      text("run", "resume", {&Run::resume, parse_resume, [](const auto& resume) { return to_text(resume); }}, Text::required,
           kRanks,
           "the run directory to continue, whose settings stand below the flags; auto, or no value: the run in --out-dir, if "
           "there "
           "is one, as the flags have it; never (default never)")
          .takes("RUN|auto|never")
          .common("continue this run (default never)")
          .or_alone("auto"),
      text("run", "force", &Run::force, Text::any, kRanks, "resume although model, data or seed differ"),
      number("run", "ckpt-interval", &Run::ckpt_interval, kCount, kRanks,
             "steps between commits; 0: at the end and on signals"),
      number("run", "ckpt-keep", &Run::ckpt_keep, {1, 100000}, kRanks,
             "the newest commits that stay; each one beyond the last is a copy of the state, in kept/ of the run directory"),
      word("run", "durability", &Run::durability, kRanks,
           "what a kill may cost: commit: the steps since the last commit; step: the current step; off: the whole run, with "
           "half the "
           "disk space; none: like off, and the end is not committed either"),
      number("run", "io-deadline", &Run::io_deadline, {0, 86400}, kOwn,
             "seconds after which an unfinished read, write or sync ends the run; 0: no limit"),
      number("run", "rank-deadline", &Run::rank_deadline, {1, 86400}, kOwn,
             "seconds that a rank waits for another one before the run ends; longer than a step computes without it"),
      text("run", "json", &Run::json, Text::any, kOwn, "print only JSON objects on standard output"),
      text("run", "tensorboard", &Run::tensorboard, Text::any, kOwn,
           "write the metrics to a TensorBoard event file in the run directory"),
      text("run", "prometheus", &Run::prometheus, Text::any, kOwn,
           "file of the last step's metrics in Prometheus' text format, replaced after each step; empty: none")
          .takes("FILE"),
      text("run", "verify-resident", &Run::verify_resident, Text::any, kOwn,
           "repeat the first steps without offloading and compare every loss"),
      text("run", "assumed-costs", &Plan::assumed_costs, Text::any, kOwn,
           "plan with FLOPs and the rates of the machine profile only; without it each kind of layer is timed first"),
      text("run", "machine-profile", &Plan::machine_profile, Text::any, kOwn,
           "file of the machine profile; empty: the saved one")
          .takes("FILE"),
  };
}

constexpr std::array<std::string_view, 5> kSections{"model", "train", "parallel", "memory", "run"};

}  // namespace

std::span<const Option> options() {
  static const std::vector<Option> table = make_table();
  return table;
}

std::span<const std::string_view> sections() { return kSections; }

const Option* find_option(std::string_view key) {
  for (const auto& option : options())
    if (option.key == key) return &option;
  return nullptr;
}

}  // namespace terrace::cli
