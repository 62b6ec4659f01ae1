#include <array>

#include <terrace/examples/terrace/options.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>

namespace terrace::cli {
namespace {

using C = RunConfig;
using Text = Option::Text;

constexpr double kMost = 1e15;  // above every size that makes sense, below the first integer a double cannot hold
constexpr bool kSame = true;    // of the fingerprint

struct Number {
  double low, high;
  bool open_low = false, open_high = false;
};
constexpr Number kPositive{1, kMost};
constexpr Number kCount{0, kMost};
constexpr Number kAbove0{0, kMost, true};
constexpr Number kFraction{0, 1, false, true};  // [0, 1)

Option number(std::string_view section, std::string_view key, Option::Field field, Number n, bool same, std::string_view help) {
  return {.key = key,
          .section = section,
          .field = field,
          .help = help,
          .fingerprint = same,
          .low = n.low,
          .high = n.high,
          .open_low = n.open_low,
          .open_high = n.open_high,
          .text = Text::any,
          .choices = {}};
}
Option text(std::string_view section, std::string_view key, Option::Field field, Text kind, bool same, std::string_view help,
            std::vector<std::string_view> choices = {}) {
  return {.key = key,
          .section = section,
          .field = field,
          .help = help,
          .fingerprint = same,
          .low = 0,
          .high = 0,
          .open_low = false,
          .open_high = false,
          .text = kind,
          .choices = std::move(choices)};
}

template <class Names>
std::vector<std::string_view> names_of(const Names& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

std::vector<Option> make_table() {
  return {
      text("model", "model", &C::model, Text::choice, kSame, "model family", {"gpt2", "llama"}),
      number("model", "layers", &C::layers, kPositive, kSame, "transformer blocks"),
      number("model", "hidden", &C::hidden, kPositive, kSame, "width of the residual stream"),
      number("model", "heads", &C::heads, kPositive, kSame, "attention heads"),
      number("model", "kv-heads", &C::kv_heads, kCount, kSame, "key and value heads; 0: as many as heads"),
      number("model", "ffn", &C::ffn, kCount, kSame, "width of the feed-forward part; 0: as the family has it"),
      number("model", "seq-len", &C::seq_len, kPositive, kSame, "tokens in a sequence"),
      // Tokens are bytes: a smaller vocabulary would have no row for some of them.
      number("model", "vocab", &C::vocab, {256, 2147483647.0}, kSame, "rows of the embedding; tokens are below it"),
      text("model", "untied", &C::untied, Text::any, kSame, "give the output head weights of its own"),
      text("model", "skips", &C::skips, Text::choice, kSame,
           "skip connections; u: block i's result, by learned weights, is added to the input of the i-th block from the end",
           {"none", "u"}),
      text("model", "data", &C::data, Text::required, kSame, "files of the corpus"),
      text("model", "data-format", &C::data_format, Text::choice, kSame,
           "what the files hold: text, whose bytes are the tokens, or token ids as unsigned integers, least byte first",
           {"bytes", "u16", "u32"}),
      text("model", "init-from", &C::init_from, Text::any, !kSame, "safetensors file with the first weights"),
      text("model", "save", &C::save, Text::any, !kSame, "safetensors file that gets the last weights"),
      text("model", "dtype", &C::dtype, Text::choice, kSame,
           "of weights and activations; bf16 and fp16 keep fp32 master weights", {"fp32", "bf16", "fp16", "fp64"}),

      number("train", "batch-size", &C::batch_size, kPositive, kSame, "sequences in a micro-batch"),
      number("train", "grad-accumulation", &C::grad_accumulation, kPositive, kSame, "micro-batches in a step"),
      number("train", "steps", &C::steps, kPositive, !kSame, "updates of the weights"),
      text("train", "optimizer", &C::optimizer, Text::choice, kSame, "what updates the weights", names_of(optimizers())),
      text("train", "recipe", &C::recipe, Text::choice, kSame, "how weights, gradients and optimizer states are kept",
           names_of(recipes())),
      number("train", "lr", &C::lr, kAbove0, kSame, "highest learning rate"),
      text("train", "lr-schedule", &C::lr_schedule, Text::choice, kSame, "course of the learning rate after the warm-up",
           {"constant", "linear", "cosine", "wsd"}),
      number("train", "min-lr", &C::min_lr, kCount, kSame, "learning rate at the end of the schedule"),
      number("train", "warmup", &C::warmup, kCount, kSame, "steps of linear warm-up"),
      number("train", "beta1", &C::beta1, kFraction, kSame, "decay of the first moment"),
      number("train", "beta2", &C::beta2, kFraction, kSame, "decay of the second moment"),
      number("train", "momentum", &C::momentum, kFraction, kSame,
             "sgd and muon: share of the velocity that stays; 0: sgd keeps none"),
      text("train", "nesterov", &C::nesterov, Text::any, kSame, "sgd and muon: look ahead by the momentum"),
      number("train", "eps", &C::eps, kAbove0, kSame, "added to the root of the second moment"),
      number("train", "weight-decay", &C::weight_decay, kCount, kSame, "weight decay; not of norms and biases"),
      text("train", "param-groups", &C::param_groups, Text::any, kSame,
           "rates, decays and clip norms of parameters by their names: \"REGEX:rate=0.1,decay=0,clip=1; ...\"; the first two "
           "multiply --lr and --weight-decay"),
      number("train", "grad-clip", &C::grad_clip, kCount, kSame,
             "greatest gradient norm of all parameters that no group clips; 0: not clipped"),
      text("train", "on-non-finite", &C::on_non_finite, Text::choice, !kSame,
           "when a loss or gradient norm is infinite or NaN: end the run, or leave the weights and go on", {"stop", "skip"}),
      text("train", "loss-scale", &C::loss_scale, Text::any, !kSame,
           "gradients are computed times this and updated without it: off, a power of two, or dynamic, which halves at an "
           "overflow and skips the step; auto: dynamic with --dtype fp16, else off"),
      text("train", "order", &C::order, Text::choice, !kSame,
           "micro-batch by micro-batch, or layer by layer over all of them; auto: what the plan is fastest with",
           {"auto", "horizontal", "vertical"}),
      number("train", "group", &C::group, kCount, !kSame, "micro-batches in a group of the vertical order; 0: all"),
      text("train", "recompute", &C::recompute, Text::layers, !kSame,
           "layers whose backward computes again what the forward would keep: none, every layer, or so many",
           {"auto", "none", "layer"}),
      text("train", "activations", &C::activations, Text::layers, !kSame,
           "layers whose activations go to the host right behind the forward; those kept go when room is needed",
           {"auto", "keep", "offload"}),
      text("train", "update", &C::update, Text::share, !kSame,
           "where updates run, or which share of them the device's are; auto: where the plan is faster",
           {"auto", "host", "device"}),
      number("train", "seed", &C::seed, {0, 9.2e18}, kSame, "of first weights and of the order of the data"),
      number("train", "threads", &C::threads, {0, 4096}, !kSame,
             "compute threads; 0: every core this process may use, beside a GPU those of its NUMA node"),
      number("train", "eval-interval", &C::eval_interval, kCount, !kSame, "steps between evaluations; 0: at the end only"),
      number("train", "eval-batches", &C::eval_batches, kCount, !kSame, "micro-batches of an evaluation; 0: none"),

      number("parallel", "dp", &C::dp, {0, 65536}, kSame,
             "ranks that train on different micro-batches; 0: as many as were launched, or one"),
      number("parallel", "zero", &C::zero, {0, 3}, kSame,
             "what they shard: 0 nothing, 1 optimizer states and masters, 2 gradients too, 3 weights too"),
      number("parallel", "shard-group", &C::shard_group, {0, 65536}, kSame,
             "neighbouring ranks that share one copy of the state, of several copies; 0: all share one"),
      text("parallel", "canonical-reduction", &C::canonical_reduction, Text::any, kSame,
           "fold gradients micro-batch by micro-batch: the bits do not depend on --dp"),
      text(
          "parallel", "compress-gradients", &C::compress_gradients, Text::choice, kSame,
          "how gradients travel between ranks: as they are, or each rounded to bf16 or in blocks to 8 bits, and summed in fp32",
          {"none", "bf16", "int8"}),
      text("parallel", "compress-weights", &C::compress_weights, Text::choice, kSame,
           "how weights travel that are gathered before use: as they are, or in blocks of 8-bit codes", {"none", "int8"}),
      number("parallel", "sync-interval", &C::sync_interval, kPositive, kSame,
             "steps between averages of the ranks' weights, which each updates by its own gradients until then (local SGD); 1: "
             "gradients are reduced at every step instead"),
      number("parallel", "pp", &C::pp, {1, 65536}, kSame, "ranks of a pipeline, which hold different layers"),
      text("parallel", "schedule", &C::schedule, Text::required, kSame,
           "who of a pipeline computes what when: layerwise, gpipe, 1f1b, interleaved, zb-h1, zb-v, chimera, dualpipe-v, "
           "pipedream, pipedream-2bw, or the file of one; plan: auto searches"),
      number("parallel", "virtual-stages", &C::virtual_stages, {0, 65536}, kSame,
             "stages a rank of the interleaved schedule; 0: as the schedule has it"),
      number("parallel", "drain-interval", &C::drain_interval, {1, 65536}, kSame,
             "steps that pipedream and pipedream-2bw compute without waiting for each other's end; then all ranks do"),
      text("parallel", "stage-layers", &C::stage_layers, Text::any, !kSame,
           "layers of each stage, such as 3,4,4,3; empty: balanced by their costs"),

      text("memory", "device", &C::device, Text::device, !kSame, "where layers are computed: cpu or cuda:N"),
      text("memory", "device-memory", &C::device_memory, Text::size, !kSame,
           "budget of the device tier; auto: free less 5 % (the cpu device: of half the memory)"),
      text("memory", "host-memory", &C::host_memory, Text::size, !kSame,
           "budget of the host tier; auto: available less 15 % (beside the cpu device: of the other half)"),
      text("memory", "nvme-path", &C::nvme_path, Text::required, !kSame,
           "folder of the disk tier, repeatable; none: no disk tier"),
      text("memory", "nvme-limit", &C::nvme_limit, Text::size, !kSame, "budget of the disk tier over all paths"),
      text("memory", "prefetch-depth", &C::prefetch_depth, Text::depth, !kSame, "computations that loads run ahead"),

      text("run", "out-dir", &C::out_dir, Text::required, !kSame, "the run directory"),
      text("run", "resume", &C::resume, Text::required, !kSame, "auto, never, or the run directory to continue"),
      text("run", "force", &C::force, Text::any, !kSame, "resume although model, data or seed differ"),
      number("run", "ckpt-interval", &C::ckpt_interval, kCount, !kSame, "steps between commits; 0: at the end and on signals"),
      text("run", "durability", &C::durability, Text::choice, !kSame,
           "what a kill may cost: the steps since the last commit, since the last step, or all of the run (half the disk "
           "space); "
           "with none the end is not committed either, and no disk is needed but the disk tier's",
           {"commit", "step", "off", "none"}),
      number("run", "io-deadline", &C::io_deadline, {0, 86400}, !kSame,
             "seconds after which a read, write or sync that does not end stops the run; 0: none"),
      text("run", "json", &C::json, Text::any, !kSame, "nothing but JSON objects on standard output"),
      text("run", "verify-resident", &C::verify_resident, Text::any, !kSame,
           "repeat the first steps with no offload and compare every loss"),
      text("run", "assumed-costs", &C::assumed_costs, Text::any, !kSame,
           "plan with FLOPs and the profile's rates only; else each kind of layer is timed here first"),
      text("run", "machine-profile", &C::machine_profile, Text::any, !kSame, "machine profile; empty: the saved one"),
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
