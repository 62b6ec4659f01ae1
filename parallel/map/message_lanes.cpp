#include <terrace/parallel/map/message_lanes.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/base/error.h>

namespace terrace::mapping {

MessageLanes::MessageLanes(const mesh::HeldLayers& pipeline, const model::Skips& skips, const ParameterLayout& layout) {
  if (pipeline.ranks == 1) return;
  const auto me = pipeline.rank;
  for (std::uint32_t replica = 0; replica < pipeline.replicas(); ++replica)
    for (std::uint32_t l = 1; l < layout.layers(); ++l) {
      const auto before = pipeline.holder(l - 1, replica), here = pipeline.holder(l, replica);
      add(me, before, here, Payload::activation);
      add(me, here, before, Payload::gradient);
      if (skips.reader(l) == model::Skips::kNone) continue;
      const auto skipping = pipeline.holder(skips.reader(l), replica);
      add(me, before, skipping, Payload::activation);
      add(me, skipping, before, Payload::gradient);
    }
  if (layout.has_tied() && pipeline.replicas() == 1) {
    const auto home = pipeline.holder(layout.tied_home()), tied = pipeline.holder(layout.tied_layer());
    add(me, home, tied, Payload::weights);
    add(me, tied, home, Payload::tied_gradient);
  }
  if (lanes_.size() > kPeerLanes)
    throw Error(
        fmt::format(
            "rank {} of the pipeline needs {} message lanes, but there are only {}\n  place the stages so that each rank "
            "has fewer neighbours",
            me, lanes_.size(), kPeerLanes),
        ErrorKind::refused);
}

void MessageLanes::add(std::uint32_t me, std::uint32_t from, std::uint32_t to, Payload payload) {
  if (from == to || (from != me && to != me)) return;
  const PeerLane lane{from == me ? Op::send : Op::receive, payload, from == me ? to : from};
  if (std::ranges::find(lanes_, lane) == lanes_.end()) lanes_.push_back(lane);
}

Lane MessageLanes::of(const Action& message) const {
  const auto at = std::ranges::find(lanes_, PeerLane{message.op, message.payload, message.peer});
  if (at == lanes_.end()) throw Error(to_text(message) + ": this rank of the pipeline has no such lane", ErrorKind::refused);
  return static_cast<Lane>(index(Lane::message) + static_cast<std::size_t>(at - lanes_.begin()));
}

}  // namespace terrace::mapping
