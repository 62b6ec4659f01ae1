#include <terrace/parallel/mesh/groups.h>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace terrace::mesh {
namespace {

// The name that users see in the ledger and in errors.
std::string name_of(const Members& members, AxisSet varying) {
  if (members.directions) return "directions";
  if (members.in_turn) return "turns";
  const auto all_of = [&](AxisSet axes) { return members.axes.within(axes) && (axes & varying).within(members.axes); };
  if (members.lane == Lane::context) return members.axes.has(Axis::expert) ? "ep" : "cp";
  if (members.lane == Lane::tensor && all_of(kTensorAxes)) return "tp";
  return members.lane == Lane::communication && all_of(kDataAxes) ? "dp" : to_string(members.axes);
}

}  // namespace

std::string to_string(const Members& members) {
  auto text = to_string(members.axes);
  if (members.directions)
    text += fmt::format(" of pipeline ranks {} and {}", members.directions->front(), members.directions->back());
  return text;
}

Members reduced_to(const Mesh& mesh, Members members) {
  members.axes = members.axes & mesh.varying();
  return members;
}

RankSpan span_of(const Members& members, const Mesh& mesh) {
  const auto ranks = mesh.size(members.axes);
  if (!members.directions) return {ranks, mesh.stride(members.axes)};
  // The data ranks of two pipeline ranks: the distance is that of neighbouring data ranks, or else of the two pipeline ranks.
  const auto [first, last] = std::ranges::minmax(*members.directions);
  return {2 * ranks, ranks > 1 ? mesh.stride(members.axes) : (last - first) * mesh.stride(Axis::pp)};
}

Groups::Groups(Communicator* world, Agreement* agreement, const Mesh& mesh, std::uint32_t rank, const std::set<Members>& needed)
    : mesh_(mesh), rank_(rank), world_(world), alone_(make_self_communicator()) {
  if (!world) return;
  std::set<Members> mine;
  for (const auto& members : needed) mine.insert(reduced_to(mesh, members));
  // All ranks make all communicators in the same order, including those that only other ranks need.
  const auto varying = mesh.varying();
  const auto split_if_needed = [&](const Members& members) {
    if (agreement->any(mine.contains(members))) split(*world, members);
  };
  for (std::uint16_t bits = 1; bits <= kAllRanks.bits(); ++bits) {
    const auto axes = AxisSet::of_bits(bits);
    if (!axes.within(varying)) continue;
    for (const auto lane : kCollectiveLanes) split_if_needed({.axes = axes, .lane = lane});
    if (axes.within(kDataAxes)) split_if_needed({.axes = axes, .in_turn = true});
  }
  // For two directions: for each first rank, the second ranks in descending order.
  const auto other_of = [&](std::uint32_t one, double below) {
    double greatest = -1;
    for (const auto& members : mine)
      if (members.directions && members.directions->front() == one && members.directions->back() < below)
        greatest = std::max(greatest, static_cast<double>(members.directions->back()));
    return agreement->max(greatest);
  };
  if (agreement->any(std::ranges::any_of(mine, [](const Members& m) { return m.directions.has_value(); })))
    for (std::uint32_t one = 0; one < mesh.pp; ++one)
      for (auto other = other_of(one, mesh.pp); other >= 0; other = other_of(one, other))
        split(*world, {kDataAxes & varying, true, std::array{one, static_cast<std::uint32_t>(other)}});
}

bool Groups::is_world(const Members& m) const {
  return !m.directions && !m.in_turn && m.lane == Lane::communication && mesh_.size(m.axes) == mesh_.size();
}

void Groups::split(Communicator& world, const Members& members) {
  const auto name = name_of(members, mesh_.varying());
  int color = static_cast<int>(mesh_.index(rank_, kAllRanks - members.axes)),
      key = static_cast<int>(mesh_.index(rank_, members.axes));
  if (members.in_turn) key = static_cast<int>(mesh_.turn(rank_));
  if (members.directions) {
    const auto at = std::ranges::find(*members.directions, mesh_.coordinate(rank_, Axis::pp)) - members.directions->begin();
    color = at < 2 ? 0 : -1;
    key += static_cast<int>(at) * static_cast<int>(mesh_.size(members.axes));
  } else if (is_world(members)) {
    return;
  }
  if (auto group = world.split(color, key, name)) others_[members] = std::move(group);
}

Communicator& Groups::of(const Members& members) const {
  const auto key = reduced_to(mesh_, members);
  if (const auto at = others_.find(key); at != others_.end()) return *at->second;
  if (!key.directions && mesh_.size(key.axes) == 1) return *alone_;
  if (world_ && is_world(key)) return *world_;
  throw std::logic_error(fmt::format("Groups: no program of this run exchanges anything among {}", to_string(members)));
}

}  // namespace terrace::mesh
