#include <terrace/examples/terrace/data/check_tokens.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <optional>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/lm/data/token_scan.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>

namespace terrace::cli {
namespace {

// Adds the checksums of the parts. The ranks of one machine read all parts, and the ranks of another machine read the same
// parts again, so each part is counted once. (An fp64 holds half of a checksum exactly.)
std::vector<std::uint64_t> add_up(const lm::ScanPart& part, const std::vector<std::uint64_t>& mine, Team& team) {
  const auto all_of = team.each(static_cast<double>(part.of)), all_parts = team.each(static_cast<double>(part.index));
  std::vector<std::size_t> counted;
  for (std::size_t r = 0; r < all_of.size(); ++r)
    if (all_of[r] == all_of[0] &&
        std::ranges::none_of(counted, [&](std::size_t other) { return all_parts[other] == all_parts[r]; }))
      counted.push_back(r);
  std::vector<std::uint64_t> sums;
  for (const auto one : mine) {
    constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;
    const auto low = team.each(static_cast<double>(one % kHalf)), high = team.each(static_cast<double>(one / kHalf));
    std::uint64_t sum = 0;
    for (const auto r : counted) sum += static_cast<std::uint64_t>(low[r]) + static_cast<std::uint64_t>(high[r]) * kHalf;
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace

std::vector<std::uint64_t> demand_tokens_of_vocabulary(const RunConfig& c, Team& team) {
  constexpr auto kAtOnce = std::chrono::seconds(2);           // much shorter than --rank-deadline, in which ranks must meet
  if (c.data.format == DataFormat::conversations) return {};  // a tokenizer made them, whose ids are known to fit
  const lm::ScanPart part{.index = static_cast<std::uint64_t>(c.found.local_rank),
                          .of = static_cast<std::uint64_t>(std::max<std::int64_t>(1, c.found.local_ranks))};
  std::optional<lm::TokenScan> scan;
  team.together([&] {
    auto files = data_files(c);
    if (!c.data.eval_files.empty()) std::ranges::move(data_files(of_evaluation(c)), std::back_inserter(files));
    scan.emplace(files, format_of_tokens(c), part);
  });
  std::uint64_t rounds = 0, next_note = 1;  // each note comes after twice as many rounds as the one before
  for (bool done = false; !done;) {
    team.together([&] { done = scan->advance(kAtOnce); });
    done = !team.any(!done);
    if (done || ++rounds < next_note) continue;
    next_note *= 2;
    if (team.first())
      base::say(stderr, fmt::format("checking that all tokens of the data ({}) are below --vocab {}: {:.0f} % done\n",
                                    format_bytes(scan->bytes()), c.model.vocab, 100 * scan->share_done()));
  }
  auto checksums = add_up(part, scan->checksums(), team);
  const auto trained_on = data_files(c).size();  // there are no checksums if every byte is a valid id
  if (checksums.size() > trained_on) checksums.resize(trained_on);
  return checksums;
}

}  // namespace terrace::cli
