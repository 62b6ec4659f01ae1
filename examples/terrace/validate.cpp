// What no option can refuse by itself: values that do not go together.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <set>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kMostTokens =
    std::numeric_limits<std::int32_t>::max();  // of a micro-batch; token indices are 32 bits wide
constexpr std::int32_t kMostBlocks = 1 << 16;  // of a step; beyond, planning takes minutes

// An order that is a file says itself how many updates it computes.
bool is_asynchronous(const RunConfig& c) {
  return c.pp > 1 && std::ranges::any_of(pipeline::all_orders(), [&](const pipeline::NamedOrder& order) {
           return order.asynchronous && order.name == c.schedule;
         });
}

}  // namespace

void validate(const RunConfig& c) {
  const auto refuse_pair = [](const std::string& why, const std::string& mend) {
    throw Error(fmt::format("{}\n  {}", why, mend), Exit::usage);
  };
  if (c.hidden % c.heads != 0) {
    refuse_pair(fmt::format("--heads {} does not divide --hidden {}", c.heads, c.hidden), "every head is hidden ÷ heads wide");
  }
  if (c.kv_heads != 0 && c.heads % c.kv_heads != 0) {
    refuse_pair(fmt::format("--kv-heads {} does not divide --heads {}", c.kv_heads, c.heads),
                "each key and value head serves the same number of query heads");
  }
  if (c.model == "gpt2" && c.kv_heads != 0 && c.kv_heads != c.heads) {
    refuse_pair(fmt::format("--kv-heads {}: gpt2 has as many as --heads {}", c.kv_heads, c.heads),
                "leave it out, or use --model llama");
  }
  if (c.model == "llama" && c.hidden / c.heads % 2 != 0) {
    refuse_pair(fmt::format("--hidden {} ÷ --heads {} is {}, which is odd", c.hidden, c.heads, c.hidden / c.heads),
                "rotary positions turn pairs of elements, so llama needs an even head width");
  }
  if (c.skips == "u" && c.layers < 3) {
    refuse_pair(fmt::format("--skips u with --layers {}: each layer reads all that it could skip from", c.layers),
                "give 3 layers or more, or leave it out");
  }
  // In floating point, because the products themselves may not fit an integer.
  const double tokens = static_cast<double>(c.batch_size) * static_cast<double>(c.seq_len);
  if (tokens > kMostTokens) {
    refuse_pair(fmt::format("--batch-size {} times --seq-len {} is more than {} tokens in a micro-batch", c.batch_size,
                            c.seq_len, kMostTokens),
                "lower one of them; --grad-accumulation makes a large batch of small micro-batches");
  }
  const double blocks = static_cast<double>(c.layers) * static_cast<double>(c.grad_accumulation);
  if (blocks > kMostBlocks) {
    refuse_pair(fmt::format("--layers {} times --grad-accumulation {} is more than {} blocks in a step", c.layers,
                            c.grad_accumulation, kMostBlocks),
                "every one of them is planned by itself; raise --batch-size instead of --grad-accumulation");
  }
  if (is_asynchronous(c) && blocks * static_cast<double>(c.drain_interval) > kMostBlocks) {
    refuse_pair(fmt::format("--layers {} times --grad-accumulation {} times --drain-interval {} is more than {} blocks between "
                            "two drains",
                            c.layers, c.grad_accumulation, c.drain_interval, kMostBlocks),
                "every one of them is planned by itself; lower --drain-interval");
  }
  std::set<fs::path> places;
  for (const auto& path : c.nvme_path) {
    std::error_code error;
    auto place = fs::weakly_canonical(fs::absolute(path), error).lexically_normal();
    if (!place.has_filename()) place = place.parent_path();  // what is not there yet keeps its last slash
    if (!places.insert(place).second)
      refuse_pair(fmt::format("--nvme-path {} is given more than once", path.string()), "every path is a disk of its own");
    if (fs::is_symlink(path, error) && !fs::exists(path, error))
      refuse_pair(fmt::format("--nvme-path {} is a link to what is not there", path.string()),
                  "make that folder, or mend the link");
    if (fs::exists(path, error) && !fs::is_directory(path, error))
      refuse_pair(fmt::format("--nvme-path {} is not a folder", path.string()),
                  "chunks are kept in a folder of their own in it");
  }
  if (!c.save.empty()) {
    std::error_code error;
    const auto parent = fs::absolute(c.save).parent_path();
    if (fs::is_directory(c.save, error)) refuse_pair(fmt::format("--save {} is a folder", c.save), "a file's name is needed");
    if (!fs::is_directory(parent, error))
      refuse_pair(fmt::format("--save {}: there is no folder {}", c.save, parent.string()), "make it first");
    // It is written beside and renamed, at the end of the run.
    if (fs::exists(c.save, error) && !fs::is_regular_file(c.save, error))
      refuse_pair(fmt::format("--save {} is no file that could be replaced", c.save), "a file's name is needed");
    if (::access(parent.c_str(), W_OK | X_OK) != 0)
      refuse_pair(fmt::format("--save {}: no file can be made in {}: {}", c.save, parent.string(), describe_errno(errno)),
                  "mend the rights there, or give another folder");
  }
  if (c.sync_interval > 1) {
    const auto without = [&](bool given, const std::string& what, const char* why) {
      if (given)
        refuse_pair(fmt::format("--sync-interval {} with {}: {}", c.sync_interval, what, why), "leave one of them out");
    };
    without(c.zero != 0, fmt::format("--zero {}", c.zero), "every rank updates a whole copy of its own, so nothing is sharded");
    without(c.shard_group != 0, "--shard-group", "every rank updates a whole copy of its own, so nothing is sharded");
    without(c.canonical_reduction, "--canonical-reduction", "gradients stay where they are computed");
    without(c.compress_gradients != "none", "--compress-gradients", "gradients stay where they are computed");
    without(c.compress_weights != "none", "--compress-weights", "weights are averaged as they are");
    without(c.pp > 1, "--pp", "the stages of a pipeline have no copies to average");
    without(c.on_non_finite == "skip", "--on-non-finite skip", "ranks would leave out different steps");
    without(c.loss_scale == "dynamic", "--loss-scale dynamic", "ranks would skip different steps");
    if (loss_scale(c).dynamic())
      refuse_pair(fmt::format("--sync-interval {} with --dtype {}, whose --loss-scale auto is dynamic: ranks would skip "
                              "different steps",
                              c.sync_interval, c.dtype),
                  "give --loss-scale off or a power of two");
    if (c.steps % c.sync_interval != 0)
      refuse_pair(fmt::format("--sync-interval {} does not divide --steps {}", c.sync_interval, c.steps),
                  "the run ends with an average, so that its weights are one rank's as much as another's");
  }
  if (c.lr_schedule != "constant" && c.min_lr > c.lr)
    refuse_pair(fmt::format("--min-lr {} is above --lr {}", c.min_lr, c.lr), "lower one or raise the other");
  if (c.lr_schedule != "constant" && c.warmup > c.steps && c.warmup != RunConfig().warmup)
    refuse_pair(fmt::format("--warmup {} is longer than --steps {}", c.warmup, c.steps), "lower one or raise the other");
  if (c.durability == "step" && c.ckpt_interval > 1) {
    refuse_pair(fmt::format("--ckpt-interval {} contradicts --durability step, which commits every step", c.ckpt_interval),
                "leave one of them out");
  }
  if ((c.durability == "off" || c.durability == "none") && c.ckpt_interval > 0) {
    refuse_pair(fmt::format("--ckpt-interval {} contradicts --durability {}, which commits {}", c.ckpt_interval, c.durability,
                            c.durability == "off" ? "at the end only" : "nothing"),
                "leave one of them out");
  }
  if (c.pp == 1 && c.schedule != RunConfig().schedule) {
    refuse_pair(fmt::format("--schedule {} is for the ranks of a pipeline, and there is none", c.schedule),
                "add --pp, the number of its ranks, or leave it out");
  }
  if (c.nvme_path.empty() && c.nvme_limit != "auto" && c.nvme_limit != "unlimited") {
    refuse_pair(fmt::format("--nvme-limit {} limits the disk tier, and there is none", c.nvme_limit),
                "add --nvme-path, a folder on a disk, or leave it out");
  }
  (void)loss_scale(c);  // refuses what is none
  if (c.group != 0 && c.order != "vertical") {
    refuse_pair(fmt::format("--group {} has no meaning with --order {}", c.group, c.order), "add --order vertical");
  }
  if (c.group != 0 && c.grad_accumulation % c.group != 0) {
    refuse_pair(fmt::format("--group {} does not divide --grad-accumulation {}", c.group, c.grad_accumulation),
                "all groups have the same number of micro-batches");
  }
}

}  // namespace terrace::cli
