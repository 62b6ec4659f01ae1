#include <terrace/parallel/check_collectives.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/parallel/collective.h>

namespace terrace {
namespace {

using Members = std::pair<RankSet, std::uint32_t>;  // a kind of set, and which of its sets

Members members_of(const StepMap& map, const Action& a, RankSet set) { return {set, number_of(set, map.place(), a.layer)}; }

struct Issued {
  Action action;
  Collective collective;
};

// Where the bytes lie is each rank's own matter.
bool match(const Collective& a, const Collective& b) {
  return a.operation == b.operation && wire_bytes(a) == wire_bytes(b) && a.reduction == b.reduction && a.wire == b.wire &&
         a.peer == b.peer;
}

std::string to_text(const Issued& i) {
  return fmt::format("{}, {} of {} bytes", terrace::to_text(i.action), name_of(i.collective.operation),
                     wire_bytes(i.collective));
}

std::string name_of(const StepMap& map) {
  const auto parts = map.tensor().ranks > 1 ? fmt::format("tensor rank {}, ", map.tensor().rank) : std::string();
  return fmt::format("{}data rank {} of pipeline rank {}", parts, map.data().rank, map.pipeline().rank);
}

using Sequence = std::vector<Issued>;
using Sequences = std::map<Members, Sequence>;  // of one rank

Sequences sequences_of(const RankProgram& rank) {
  Sequences all;
  for (const auto& action : rank.program.actions)
    for (const auto& collective : collectives_of(rank.map, action))
      if (is_collective(collective.operation))
        all[members_of(rank.map, action, collective.ranks)].push_back({action, collective});
  return all;
}

// Also of a rank that has issued nothing there.
bool belongs(const StepMap& map, const Members& members) {
  const auto [set, which] = members;
  if (set != RankSet::directions) return members_of(map, {}, set) == members;
  for (std::uint32_t l = 0; l < map.layers(); ++l)
    if (map.pipeline().holds(l) && map.pipeline().stage(l) == which) return true;
  return false;
}

void compare(const StepMap& one, const Sequence& ones, const StepMap& other, const Sequence& others) {
  const auto same = [](const Issued& a, const Issued& b) { return match(a.collective, b.collective); };
  const auto [at, there] = std::ranges::mismatch(ones, others, same);
  if (at == ones.end() && there == others.end()) return;
  const auto shown = [](const Sequence& all, auto next) { return next == all.end() ? "nothing more" : to_text(*next); };
  throw Error(fmt::format("two ranks that exchange with each other disagree on their collective {}\n  {}: {}\n  {}: {}",
                          at - ones.begin(), name_of(one), shown(ones, at), name_of(other), shown(others, there)),
              Exit::usage);
}

}  // namespace

void check_collectives(std::span<const RankProgram> ranks) {
  std::vector<Sequences> issued;
  std::set<Members> sets;
  for (const auto& rank : ranks)
    for (const auto& [members, sequence] : issued.emplace_back(sequences_of(rank))) sets.insert(members);
  for (const auto& members : sets) {
    std::optional<std::size_t> first;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (!belongs(ranks[r].map, members)) continue;
      if (first)
        compare(ranks[*first].map, issued[*first][members], ranks[r].map, issued[r][members]);
      else
        first = r;
    }
  }
}

}  // namespace terrace
