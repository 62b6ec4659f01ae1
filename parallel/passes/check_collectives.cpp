#include <terrace/parallel/passes/check_collectives.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/map/collective.h>

namespace terrace::passes {
namespace {

// Ranks that exchange with each other have the same key: the members and the first rank among them.
using Peers = std::pair<mesh::Members, std::uint32_t>;

Peers peers_of(const StepMap& map, const mesh::Members& given) {
  const auto members = mesh::reduced_to(map.mesh(), given);
  return {members, members.directions ? 0 : map.mesh().at(map.rank(), members.axes, 0)};
}

struct Issued {
  Action action;
  mapping::Collective collective;
};

// Ranks may keep the bytes in different places. In an all-to-all, the bytes differ by pair of ranks (demand_pair()).
bool match(const mapping::Collective& a, const mapping::Collective& b) {
  return a.operation == b.operation &&
         (a.operation == comm::Operation::all_to_all || mapping::wire_bytes(a) == mapping::wire_bytes(b)) &&
         a.reduction == b.reduction && a.wire == b.wire && a.peer == b.peer;
}

std::string to_text(const Issued& i) {
  return fmt::format("{}, {} of {} bytes", terrace::to_text(i.action), name_of(i.collective.operation),
                     mapping::wire_bytes(i.collective));
}

std::string name_of(const StepMap& map) {
  const auto parts = map.tensor().ranks > 1 ? fmt::format("tensor rank {}, ", map.tensor().rank) : std::string();
  return fmt::format("{}data rank {} of pipeline rank {}", parts, map.data().rank(), map.pipeline().rank);
}

using Sequence = std::vector<Issued>;
using Sequences = std::map<Peers, Sequence>;  // of one rank

Sequences sequences_of(const RankProgram& rank) {
  Sequences all;
  for (const auto& action : rank.program.actions)
    for (const auto& collective : mapping::collectives_of(rank.map, action))
      if (is_collective(collective.operation)) all[peers_of(rank.map, collective.members)].push_back({action, collective});
  return all;
}

// True if the rank is one of these peers, even if it has issued nothing there.
bool belongs(const StepMap& map, const Peers& peers) {
  const auto& [members, first] = peers;
  if (!members.directions) return peers_of(map, members) == peers;
  return std::ranges::find(*members.directions, map.pipeline().rank) != members.directions->end();
}

void compare(const StepMap& one, const Sequence& ones, const StepMap& other, const Sequence& others) {
  const auto same = [](const Issued& a, const Issued& b) { return match(a.collective, b.collective); };
  const auto [at, there] = std::ranges::mismatch(ones, others, same);
  if (at == ones.end() && there == others.end()) return;
  const auto shown = [](const Sequence& all, auto next) { return next == all.end() ? "nothing more" : to_text(*next); };
  throw Error(fmt::format("two ranks that exchange with each other disagree on their collective {}\n  {}: {}\n  {}: {}",
                          at - ones.begin(), name_of(one), shown(ones, at), name_of(other), shown(others, there)),
              ErrorKind::refused);
}

// Checks that in each all-to-all, either rank receives as many bytes as the other sends to it.
void demand_pair(const StepMap& one, const Sequence& ones, const StepMap& other, const Sequence& others) {
  for (std::size_t n = 0; n < ones.size(); ++n) {
    const auto &a = ones[n].collective, &b = others[n].collective;
    if (a.operation != comm::Operation::all_to_all) continue;
    const auto i = one.mesh().index(one.rank(), a.members.axes), j = other.mesh().index(other.rank(), a.members.axes);
    if (a.sent.at(j) == b.received.at(i) && a.received.at(j) == b.sent.at(i)) continue;
    throw Error(
        fmt::format("two ranks disagree on the bytes between them\n  {}: {}, sends {} and receives {}\n  {}: {}, sends {} "
                    "and receives {}",
                    name_of(one), terrace::to_text(ones[n].action), a.sent.at(j), a.received.at(j), name_of(other),
                    terrace::to_text(others[n].action), b.sent.at(i), b.received.at(i)),
        ErrorKind::refused);
  }
}

}  // namespace

void check_collectives(std::span<const RankProgram> ranks) {
  std::vector<Sequences> issued;
  std::set<Peers> all;
  for (const auto& rank : ranks)
    for (const auto& [peers, sequence] : issued.emplace_back(sequences_of(rank))) all.insert(peers);
  for (const auto& peers : all) {
    std::vector<std::size_t> members;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      if (belongs(ranks[r].map, peers)) members.push_back(r);
    const auto first = members.front();
    for (const auto r : members)
      if (r != first) compare(ranks[first].map, issued[first][peers], ranks[r].map, issued[r][peers]);
    const auto deals = [](const Issued& i) { return i.collective.operation == comm::Operation::all_to_all; };
    if (std::ranges::none_of(issued[first][peers], deals)) continue;
    for (const auto r : members)
      for (const auto earlier : members)
        if (earlier < r) demand_pair(ranks[earlier].map, issued[earlier][peers], ranks[r].map, issued[r][peers]);
  }
}

}  // namespace terrace::passes
