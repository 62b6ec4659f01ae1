#include <terrace/examples/terrace/config/same_settings.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/file_state.h>
#include <terrace/core/base/files.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kWindow = std::uint64_t{1} << 20;  // bytes that are read at once

// "rank 1", "ranks 1, 2 and 5"
std::string named(const std::vector<std::size_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

std::vector<std::size_t> ranks_where(bool mine, Team& team) {
  const auto all = team.each(mine ? 1 : 0);
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != 0) ranks.push_back(r);
  return ranks;
}

}  // namespace

std::string describe_content(const fs::path& file, std::uint64_t most) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{} cannot be read: {}\n  give all ranks the same regular file", file.string(), why));
  };
  files::FileHandle in;
  try {
    in = files::open_regular(file, O_RDONLY);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (!in) refuse(describe_errno(errno));
  std::error_code failed;
  const auto bytes = fs::file_size(file, failed);
  if (failed) refuse(describe_errno(failed.value()));
  // Windows at even distances, the first at the beginning and the last at the end of the file.
  const auto window = std::min(kWindow, std::max<std::uint64_t>(1, most));
  const auto whole = (bytes + window - 1) / window;
  const auto windows = bytes <= most ? whole : std::max<std::uint64_t>(2, most / window);
  std::vector<std::uint64_t> sums;
  std::vector<std::byte> read;
  for (std::uint64_t i = 0; i < windows; ++i) {
    const auto begin = windows == whole ? i * window : (bytes - window) / (windows - 1) * i;
    read.resize(static_cast<std::size_t>(std::min(window, bytes - begin)));
    try {
      files::read_all(in.get(), begin, read);
    } catch (const Error& error) {
      refuse(error.what());
    }
    sums.push_back(checksum_of(read));
  }
  return fmt::format("{} bytes with checksum {:016x}", bytes, checksum_of(std::as_bytes(std::span(sums))));
}

nlohmann::json settings_of_all_ranks(const RunConfig& c) {
  nlohmann::json out;
  const auto all = to_json(c);
  for (const auto& o : options())
    if (o.same != Option::Same::nowhere) out[std::string(o.key)] = all.at(std::string(o.section)).at(std::string(o.key));
  out["data"] = nlohmann::json::array();
  for (const auto& source : data_sources(c))
    for (const auto& file : source.files) out["data"].push_back(describe_content(file));
  if (!c.data.eval_files.empty()) {
    auto& files = out["eval-data"] = nlohmann::json::array();
    for (const auto& source : data_sources(of_evaluation(c)))
      for (const auto& file : source.files) files.push_back({source.weight, describe_content(file)});
  }
  if (const auto sources = data_sources(c); sources.size() > 1)
    for (const auto& source : sources) out["data weights"].push_back({source.weight, source.files.size()});
  if (!holds_out(c)) out["held-out data"] = "none";
  if (!c.run.init_from.empty()) {
    auto& files = out["init-from"] = nlohmann::json::array();
    for (const auto& file : lm::weight_files(c.run.init_from)) files.push_back(describe_content(file));
  }
  if (!c.run.init_adapter.empty())
    out["init-adapter"] = describe_content(fs::path(c.run.init_adapter) / lm::kAdapterWeightsFile);
  if (c.data.format == DataFormat::conversations || c.data.format == DataFormat::text)
    out["tokenizer"] = describe_content(tokenizer_of(c));
  if (c.data.format == DataFormat::conversations)
    if (auto text = describe_template(c); !text.empty()) out["chat template"] = std::move(text);
  if (std::error_code error; fs::is_regular_file(c.parallel.schedule, error))
    out["schedule"] = describe_content(c.parallel.schedule);
  if (c.run.resume.names_run()) out["resume"] = "a run directory";
  // Each rank may have its own GPU, but GPU and CPU exchange their results in different ways.
  out["device"] = c.on_gpu() ? "cuda" : "cpu";
  for (const auto* const choice : {"TERRACE_ATTENTION", "TERRACE_ATTENTION_KERNEL"})
    if (const auto* const value = std::getenv(choice)) out[choice] = value;
  return out;
}

void demand_same_settings(const RunConfig& config, Team& team) {
  if (!team.has_processes() || team.size() == 1) return;
  nlohmann::json mine;
  team.together([&] { mine = settings_of_all_ranks(config); });
  const auto first = nlohmann::json::parse(team.of_first(mine.dump()));
  const auto difference = describe_difference(first, mine, "on rank 0", fmt::format("on rank {}", team.rank()));
  const auto others = ranks_where(!difference.empty(), team);
  team.together([&] {
    if (!difference.empty())
      throw base::Refused(
          fmt::format("the settings of {} differ from those of rank 0:\n{}\n  start all ranks with the same flags and files",
                      named(others), difference));
  });
}

void warn_of_other_bits(const RunConfig& config, Team& team) {
  if (!team.has_processes() || team.size() == 1) return;
  std::string mine;
  team.together([&] { mine = bits_group(config); });
  const auto first = team.of_first(mine);
  const auto others = ranks_where(mine != first, team);
  if (!others.empty() && static_cast<std::size_t>(team.rank()) == others.front())
    base::warn(
        fmt::format("the ranks compute different bits, {} on {} and {} on rank 0: the run is correct, but its bits depend on "
                    "which machine has which rank",
                    mine, named(others), first));
}

}  // namespace terrace::cli
