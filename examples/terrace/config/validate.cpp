// Checks that need several options: values that contradict each other.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <set>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/usage_errors.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/ranks.h>
#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kMostTokens = std::numeric_limits<std::int32_t>::max();  // in a micro-batch; token indices have 32 bits
constexpr std::int32_t kMostBlocks = 1 << 16;                                   // in a step; with more, planning takes minutes

// ", or give --model llama": names the families that have what this one lacks.
std::string or_another_family(bool (*has)(const lm::Family&)) {
  const auto names = lm::names_of_families("or", has);
  return names.empty() ? "" : ", or give --model " + names;
}

// A schedule from a file is checked when the file is read.
bool is_asynchronous(const RunConfig& c) {
  return c.parallel.pp > 1 && std::ranges::any_of(pipeline::all_orders(), [&](const pipeline::NamedOrder& order) {
           return order.asynchronous && order.name == c.parallel.schedule;
         });
}

[[noreturn]] void refuse_pair(const std::string& why, const std::string& mend) {
  throw base::Refused(fmt::format("{}\n  {}", why, mend));
}

void demand_heads(const RunConfig& c) {
  if (c.model.head_size == 0 && c.model.hidden % c.model.heads != 0) {
    refuse_pair(fmt::format("--heads {} does not divide --hidden {}", c.model.heads, c.model.hidden),
                "the width of a head is --hidden ÷ --heads, so give a --heads that divides --hidden, or --head-dim");
  }
  if (c.model.kv_heads != 0 && c.model.heads % c.model.kv_heads != 0) {
    refuse_pair(fmt::format("--kv-heads {} does not divide --heads {}", c.model.kv_heads, c.model.heads),
                "each key and value head serves the same number of query heads, so give a --kv-heads that divides --heads");
  }
}

void demand_family(const RunConfig& c) {
  const auto& family = c.model.family.get();
  const auto has_grouped_heads = [](const lm::Family& other) { return *other.grouped_heads; };
  const auto has_rotary_base = [](const lm::Family& other) { return lm::rotary_base(other) != nullptr; };
  if (!has_grouped_heads(family) && c.model.kv_heads != 0 && c.model.kv_heads != c.model.heads) {
    refuse_pair(fmt::format("--kv-heads {}: {} has as many key and value heads as --heads {}", c.model.kv_heads, *family.name,
                            c.model.heads),
                "leave --kv-heads out" + or_another_family(has_grouped_heads));
  }
  const auto* const base = lm::rotary_base(family);
  if (base && c.model.head_size % 2 != 0)
    refuse_pair(fmt::format("--head-dim {} is odd", c.model.head_size),
                fmt::format("rotary positions rotate pairs of elements, so {} needs an even --head-dim", *family.name));
  if (base && c.model.head_size == 0 && c.model.hidden / c.model.heads % 2 != 0) {
    refuse_pair(
        fmt::format("--hidden {} ÷ --heads {} is {}, which is odd", c.model.hidden, c.model.heads,
                    c.model.hidden / c.model.heads),
        fmt::format("rotary positions rotate pairs of elements, so {} needs an even head width: give another --heads or "
                    "--hidden",
                    *family.name));
  }
  if (!base && c.model.rope_theta != 0) {
    refuse_pair(fmt::format("--rope-base {}: {} learns its positions and rotates nothing", c.model.rope_theta, *family.name),
                "leave --rope-base out" + or_another_family(has_rotary_base));
  }
  if (base && c.model.rope_theta != 0 && c.model.rope_theta < 1) {
    refuse_pair(
        fmt::format("--rope-base {} is below 1, so later pairs of elements would rotate faster", c.model.rope_theta),
        fmt::format("give --rope-base the {} of the model; the usual one is {}", lm::word_of(base->keys), *base->usual));
  }
}

void demand_norm(const RunConfig& c) {
  const auto& family = c.model.family.get();
  if (c.model.norm_eps != 0 && static_cast<float>(c.model.norm_eps) < std::numeric_limits<float>::min()) {
    refuse_pair(fmt::format("--norm-eps {} is too small for fp32, in which norms are computed", c.model.norm_eps),
                fmt::format("give --norm-eps the {} of the model; the usual one is {}", lm::word_of(family.norm_eps.keys),
                            *family.norm_eps.usual));
  }
}

void demand_tiles(const RunConfig& c) {
  if (const auto most = layers::most_vocab_tiles(c.model.vocab, c.parallel.tp); c.model.vocab_tiles > most) {
    refuse_pair(fmt::format("--vocab-tiles {}: a tile of --vocab {}{} would have too few rows", c.model.vocab_tiles,
                            c.model.vocab, c.parallel.tp > 1 ? fmt::format(" on --tp {}", c.parallel.tp) : ""),
                fmt::format("give --vocab-tiles {} or fewer", most));
  }
}

void demand_window(const RunConfig& c) {
  const auto& pattern = c.model.window.pattern();
  if (std::ssize(pattern) > c.model.layers)
    refuse_pair(fmt::format("--window {} has {} numbers for --layers {}", layers::to_string(c.model.window), pattern.size(),
                            c.model.layers),
                "blocks have the windows of the list in turn, so give at most one for each layer");
}

void demand_separator(const RunConfig& c) {
  if (c.data.document_separator >= c.model.vocab)
    refuse_pair(
        fmt::format("--document-separator {} with --vocab {}: no token has this id", c.data.document_separator, c.model.vocab),
        fmt::format("give the id of a token, at most {}, or leave it out", c.model.vocab - 1));
}

void demand_weights(const RunConfig& c) {
  static_cast<void>(data_sources(c));
  static_cast<void>(data_sources(of_evaluation(c)));
  if (!c.data.eval_files.empty() && c.train.eval_batches == 0)
    refuse_pair("--eval-data with --eval-batches 0, which evaluates nothing",
                "give --eval-batches 1 or more, or leave out one");
}

void demand_bytes(const RunConfig& c) {
  if (c.data.format == DataFormat::bytes && c.model.vocab < lm::kByteVocabulary)
    refuse_pair(fmt::format("--vocab {} with --data-format bytes: a byte has {} values", c.model.vocab, lm::kByteVocabulary),
                fmt::format("give --vocab at least {}, or the --data-format of a file of tokens", lm::kByteVocabulary));
}

void demand_conversations(const RunConfig& c) {
  const bool conversations = c.data.format == DataFormat::conversations;
  if (conversations && c.data.document_separator >= 0)
    refuse_pair(fmt::format("--document-separator {} with --data-format jsonl: each conversation is a document already",
                            c.data.document_separator),
                "leave --document-separator out");
  if (c.data.format == DataFormat::bytes && !c.data.tokenizer.empty())
    refuse_pair("--tokenizer with --data-format bytes: bytes are the tokens",
                "leave --tokenizer out; or give --data-format jsonl, or ids that terrace tokenize makes");
  if (!conversations && !c.data.template_date.empty())
    refuse_pair(
        fmt::format("--template-date with --data-format {}: only conversations have a chat template", word_of(c.data.format)),
        "leave --template-date out, or give --data-format jsonl");
  template_time(c);
}

void demand_experts(const RunConfig& c) {
  if (c.model.experts.count > 0 && c.model.experts.chosen > c.model.experts.count) {
    refuse_pair(fmt::format("--experts-per-token {} with --experts {}: a token chooses among the experts",
                            c.model.experts.chosen, c.model.experts.count),
                fmt::format("give --experts-per-token {} or fewer", c.model.experts.count));
  }
  if (c.model.experts.count == 0 && (c.model.experts.shared > 0 || c.model.experts.capacity_factor > 0 ||
                                     c.model.experts.balance_loss > 0 || c.model.experts.square_loss > 0)) {
    refuse_pair(
        fmt::format("--{} without --experts: the model has no router", c.model.experts.shared > 0            ? "shared-experts"
                                                                       : c.model.experts.capacity_factor > 0 ? "expert-capacity"
                                                                       : c.model.experts.balance_loss > 0    ? "router-aux-loss"
                                                                                                             : "router-z-loss"),
        "give --experts 2 or more, or leave it out");
  }
}

void demand_skips(const RunConfig& c) {
  if (c.model.skips == layers::SkipShape::u && c.model.layers < 3) {
    refuse_pair(fmt::format("--skips u with --layers {}: there are too few layers for a skip connection", c.model.layers),
                "give --layers 3 or more, or leave --skips out");
  }
}

void demand_few_blocks(const RunConfig& c) {
  // In floating point, because the products themselves may not fit an integer.
  const double tokens = static_cast<double>(c.train.batch_size) * static_cast<double>(c.model.seq_len);
  if (tokens > kMostTokens) {
    refuse_pair(fmt::format("--batch-size {} times --seq-len {} is more than {} tokens in a micro-batch", c.train.batch_size,
                            c.model.seq_len, kMostTokens),
                "lower one of them; --grad-accumulation makes a large batch from small micro-batches");
  }
  const double blocks = static_cast<double>(c.model.layers) * static_cast<double>(c.train.grad_accumulation);
  if (blocks > kMostBlocks) {
    refuse_pair(fmt::format("--layers {} times --grad-accumulation {} is more than {} blocks in a step", c.model.layers,
                            c.train.grad_accumulation, kMostBlocks),
                "each block is planned separately; raise --batch-size instead of --grad-accumulation");
  }
  if (is_asynchronous(c) && blocks * static_cast<double>(c.parallel.drain_interval) > kMostBlocks) {
    refuse_pair(fmt::format("--layers {} times --grad-accumulation {} times --drain-interval {} is more than {} blocks between "
                            "two drains",
                            c.model.layers, c.train.grad_accumulation, c.parallel.drain_interval, kMostBlocks),
                "each block is planned separately; lower --drain-interval");
  }
}

void demand_disks(const RunConfig& c) {
  std::set<fs::path> places;
  for (const auto& path : c.memory.nvme_path) {
    std::error_code error;
    auto place = fs::weakly_canonical(fs::absolute(path), error).lexically_normal();
    if (!place.has_filename()) place = place.parent_path();  // a path that does not exist yet keeps its last slash
    if (!places.insert(place).second)
      refuse_pair(fmt::format("--nvme-path {} is given more than once", path.string()),
                  "give each path once: every path is a separate disk");
    if (fs::is_symlink(path, error) && !fs::exists(path, error))
      refuse_pair(fmt::format("--nvme-path {} is a link whose target does not exist", path.string()),
                  "create the folder that it links to, or change the link");
    if (fs::exists(path, error) && !fs::is_directory(path, error))
      refuse_pair(fmt::format("--nvme-path {} is not a folder", path.string()),
                  "give --nvme-path a folder on a disk; the run creates its own folder in it");
  }
}

// Checks the place of --save.
void demand_place_of_weights(const RunConfig& c) {
  if (c.run.save.empty()) return;
  std::error_code error;
  const auto parent = fs::absolute(c.run.save).parent_path();
  if (fs::is_directory(c.run.save, error))
    refuse_pair(fmt::format("--save {} is a folder", c.run.save), "give --save the name of a file");
  if (!fs::is_directory(parent, error))
    refuse_pair(fmt::format("--save {}: the folder {} does not exist", c.run.save, parent.string()),
                "create the folder first, or give --save another file");
  // At the end of the run a new file is written beside it and renamed.
  if (fs::exists(c.run.save, error) && !fs::is_regular_file(c.run.save, error))
    refuse_pair(fmt::format("--save {} exists and is not a regular file", c.run.save), "give --save the name of a file");
  const auto beside = fs::symlink_status(c.run.save + ".tmp", error);
  if (fs::exists(beside) && !fs::is_regular_file(beside))
    refuse_pair(fmt::format("--save {}: {}.tmp, as which it is written, is not a regular file", c.run.save, c.run.save),
                "remove that, or give --save another file");
  if (::access(parent.c_str(), W_OK | X_OK) != 0)
    refuse_pair(fmt::format("--save {}: no file can be created in {}: {}", c.run.save, parent.string(), describe_errno(errno)),
                "change the permissions there, or give --save a file in another folder");
}

void demand_copies(const RunConfig& c) {
  if (c.parallel.sync_interval == 1) return;
  const auto without = [&](bool given, const std::string& what, const char* why) {
    if (given)
      refuse_pair(fmt::format("--sync-interval {} cannot be combined with {}: {}", c.parallel.sync_interval, what, why),
                  "leave one of them out");
  };
  without(c.train.on_non_finite == NonFinite::skip, "--on-non-finite skip", "the ranks would skip different steps");
  without(c.train.loss_scale == "dynamic", "--loss-scale dynamic", "the ranks would skip different steps");
  if (loss_scale(c).dynamic())
    refuse_pair(
        fmt::format("--sync-interval {} cannot be combined with --dtype {}, whose --loss-scale auto is dynamic: the ranks "
                    "would skip different steps",
                    c.parallel.sync_interval, word_of(c.model.dtype)),
        "give --loss-scale off or a power of two");
  if (c.train.epochs == 0 && c.train.steps % c.parallel.sync_interval != 0)  // the steps of --epochs are rounded up
    refuse_pair(fmt::format("--sync-interval {} does not divide --steps {}", c.parallel.sync_interval, c.train.steps),
                "the run must end with an average, so that all ranks have the same weights: change one of the two flags");
}

void demand_rates(const RunConfig& c) {
  if (c.train.lr_schedule != ScheduleKind::constant && c.train.min_lr > c.train.lr)
    refuse_pair(fmt::format("--min-lr {} is above --lr {}", c.train.min_lr, c.train.lr), "lower --min-lr, or raise --lr");
  (void)loss_scale(c);  // throws if --loss-scale is wrong
}

void demand_commits(const RunConfig& c) {
  if (c.run.durability == Durability::step && c.run.ckpt_interval > 1) {
    refuse_pair(fmt::format("--ckpt-interval {} contradicts --durability step, which commits every step", c.run.ckpt_interval),
                "leave one of them out");
  }
  if (!keeps_commits(c.run.durability) && c.run.ckpt_keep > 1) {
    refuse_pair(fmt::format("--ckpt-keep {} contradicts --durability {}, which overwrites each commit", c.run.ckpt_keep,
                            word_of(c.run.durability)),
                "leave one of them out");
  }
  if (!keeps_commits(c.run.durability) && c.run.ckpt_interval > 0) {
    refuse_pair(fmt::format("--ckpt-interval {} contradicts --durability {}, which commits {}", c.run.ckpt_interval,
                            word_of(c.run.durability), c.run.durability == Durability::off ? "at the end only" : "nothing"),
                "leave one of them out");
  }
}

void demand_schedule(const RunConfig& c) {
  if (c.parallel.pp == 1 && c.parallel.schedule != RunConfig().parallel.schedule) {
    refuse_pair(fmt::format("--schedule {} needs a pipeline, and --pp is 1", c.parallel.schedule),
                "add --pp, the number of the pipeline's ranks, or leave --schedule out");
  }
}

void demand_context_mode(const RunConfig& c) {
  const RunConfig usual;
  if (c.parallel.cp == 1 && c.parallel.cp_mode != usual.parallel.cp_mode) {
    refuse_pair(fmt::format("--cp-mode {} needs ranks that share a sequence, and --cp is 1", word_of(c.parallel.cp_mode)),
                "add --cp, the number of these ranks, or leave --cp-mode out");
  }
  if (c.parallel.cp_mode != ContextMode::both && c.parallel.cp_ring != usual.parallel.cp_ring) {
    refuse_pair(fmt::format("--cp-ring {} has no effect with --cp-mode {}", c.parallel.cp_ring, word_of(c.parallel.cp_mode)),
                "add --cp-mode both, or leave --cp-ring out");
  }
}

void demand_disk_tier(const RunConfig& c) {
  if (c.memory.nvme_path.empty() && c.memory.nvme_limit != "auto" && c.memory.nvme_limit != "unlimited") {
    refuse_pair(fmt::format("--nvme-limit {} limits the disk tier, but there is no --nvme-path", c.memory.nvme_limit),
                "add --nvme-path, a folder on a disk, or leave --nvme-limit out");
  }
}

void demand_adapters(const RunConfig& c) {
  const RunConfig usual;
  if (c.train.lora_rank != 0) return;
  for (const auto& [given, flag] :
       {std::pair{c.train.lora_targets != usual.train.lora_targets, "--lora-targets " + c.train.lora_targets},
        std::pair{c.train.lora_alpha != usual.train.lora_alpha, fmt::format("--lora-alpha {}", c.train.lora_alpha)}})
    if (given)
      refuse_pair(fmt::format("{} is of adapters, and --lora-rank is 0, so all parameters would be trained", flag),
                  "add --lora-rank, or leave it out");
}

void demand_group(const RunConfig& c) {
  if (c.plan.group != 0 && c.plan.order != Order::vertical) {
    refuse_pair(fmt::format("--group {} has no effect with --order {}", c.plan.group, word_of(c.plan.order)),
                "add --order vertical, or leave --group out");
  }
  if (c.plan.group != 0 && c.train.grad_accumulation % c.plan.group != 0) {
    refuse_pair(fmt::format("--group {} does not divide --grad-accumulation {}", c.plan.group, c.train.grad_accumulation),
                "all groups must have the same number of micro-batches: give a --group that divides --grad-accumulation");
  }
}

// Tensors that one product computes must be frozen together, because one product computes their gradients, too.
void demand_whole_products(const lm::TensorNames& names, const std::vector<ParamSpec>& layer) {
  for (const auto* const product : {&names.qkv, &names.up})
    for (const auto* const ending : {".weight", ".bias"}) {
      std::string some, others;
      for (const auto tensor : product->tensors)
        for (const auto& param : layer)
          if (param.name.ends_with("." + std::string(tensor) + ending)) (param.frozen ? some : others) = param.name;
      if (!some.empty() && !others.empty())
        refuse_pair(fmt::format("--freeze freezes {} and not {}, whose gradients are one product", some, others),
                    "freeze all of a product's tensors, or none");
    }
}

// The flag that cuts the layer into tiles. If the number of tiles is 0, it is not chosen yet.
const char* tiles_of(const RunConfig& c, std::string_view layer) {
  if (layer.ends_with(".attention")) return c.model.attention_tiles > 1 ? "--attention-tiles" : nullptr;
  if (layer.ends_with(".mlp"))
    return c.model.mlp_tiles > 1 ? "--mlp-tiles" : c.model.mlp_row_tiles > 1 ? "--mlp-row-tiles" : nullptr;
  return c.model.vocab_tiles > 1 ? "--vocab-tiles" : nullptr;
}

}  // namespace

// A layer in tiles, and every layer of a model with experts, is frozen whole or not at all.
void demand_freeze(const RunConfig& c) {
  if (c.train.freeze.empty()) return;
  auto untiled = c;
  untiled.model.vocab_tiles = untiled.model.mlp_tiles = untiled.model.mlp_row_tiles = untiled.model.attention_tiles = 1;
  const auto model = lm::make_model(model_config(untiled));
  std::vector<std::vector<ParamSpec>> params;
  for (const auto& layer : model.layers) params.push_back(layer->params());
  model::apply_freeze(model::parse_freeze(c.train.freeze), model, params);
  for (std::size_t l = 0; l < params.size(); ++l) {
    const auto& layer = params[l];
    const auto frozen = std::ranges::count_if(layer, &ParamSpec::frozen);
    if (frozen == 0 || frozen == std::ssize(layer)) continue;
    const auto* const tiles = c.model.experts.count > 0 ? "--experts" : tiles_of(c, model.layers[l]->name());
    if (tiles)
      refuse_pair(fmt::format("--freeze freezes a part of the layer {}, {}, and with {} it is frozen whole or not at all",
                              model.layers[l]->name(), std::ranges::find_if(layer, &ParamSpec::frozen)->name, tiles),
                  "give patterns of whole layers, such as layers.0.mlp");
    demand_whole_products(c.model.family.get().tensors, layer);
  }
}

void validate(const RunConfig& c) {
  base::UsageErrors errors;
  for (const auto check : {demand_heads, demand_family, demand_norm, demand_window, demand_separator, demand_weights,
                           demand_bytes, demand_conversations, demand_experts, demand_skips, demand_few_blocks})
    errors.gather([&] { check(c); });
  // If the model is impossible, its degrees are not checked.
  if (!errors.any()) errors.gather([&] { demand_degrees(c); });
  if (!errors.any()) errors.gather([&] { demand_freeze(c); });
  for (const auto check : {demand_tiles, demand_disks, demand_place_of_weights, demand_copies, demand_rates, demand_commits,
                           demand_schedule, demand_context_mode, demand_disk_tier, demand_adapters, demand_group})
    errors.gather([&] { check(c); });
  errors.throw_if_any();
}

}  // namespace terrace::cli
