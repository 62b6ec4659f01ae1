#include <terrace/examples/terrace/check_tokens.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include <terrace/core/notice.h>
#include <terrace/core/units.h>
#include <terrace/examples/lm/token_scan.h>
#include <terrace/examples/terrace/data_sources.h>
#include <terrace/examples/terrace/run_tokenizer.h>

namespace terrace::cli {

void demand_tokens_of_vocabulary(const RunConfig& c, Team& team) {
  constexpr auto kAtOnce = std::chrono::seconds(2);  // much shorter than --rank-deadline, in which ranks must meet
  if (c.data_format == kConversations) return;       // a tokenizer made them, whose ids were compared with the vocabulary
  std::optional<lm::TokenScan> scan;
  team.together([&] {
    scan.emplace(data_files(c), lm::token_format(c.data_format, c.vocab),
                 lm::ScanPart{.index = static_cast<std::uint64_t>(c.local_rank),
                              .of = static_cast<std::uint64_t>(std::max<std::int64_t>(1, c.local_ranks))});
  });
  std::uint64_t rounds = 0, next_note = 1;  // with twice the distance each time
  for (bool done = false; !done;) {
    team.together([&] { done = scan->advance(kAtOnce); });
    done = !team.any(!done);
    if (done || ++rounds < next_note) continue;
    next_note *= 2;
    if (team.first())
      say(stderr, fmt::format("checking that all tokens of the data ({}) are below --vocab {}: {:.0f} % done\n",
                              format_bytes(scan->bytes()), c.vocab, 100 * scan->share_done()));
  }
}

}  // namespace terrace::cli
