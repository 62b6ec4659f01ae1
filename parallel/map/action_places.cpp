#include <terrace/parallel/map/action_places.h>

#include <utility>

namespace terrace::mapping {

ActionPlaces::ActionPlaces(const UpdatePlace& update, bool separate_device, const LayerPhases& phases,
                           const std::vector<std::uint32_t>& updates_of, MessageLanes messages)
    : update_(update), separate_device_(separate_device), phases_(phases), messages_(std::move(messages)) {
  std::uint32_t updates = 0;
  for (const auto of_layer : updates_of) {
    first_update_.push_back(updates);
    updates += of_layer;
  }
}

Tier ActionPlaces::tier_of(const Action& a) const {
  switch (a.op) {
    case Op::update:
    case Op::early:
    case Op::restore:
    case Op::prepare:
    case Op::exchange: return update_.of(first_update_[a.layer] + a.chunk, first_update_[a.layer] == 0);
    case Op::fill:  // functions on the host do it
    case Op::visit: return separate_device_ ? Tier::host : update_.most();
    case Op::send:  // from the tier where most chunks were updated
    case Op::receive: return a.payload == Payload::weights ? update_.most() : Tier::device;
    default: return Tier::device;
  }
}

Lane ActionPlaces::lane_of(const Action& a) const {
  // A layer waits for the sums of its tensor ranks, so they have their own lane and do not queue behind gathers for later
  // layers.
  if (a.op == Op::unify) return Lane::tensor;
  if (has_phases(a.op) && phases_.exchanges(a)) return phases_.phase(a).exchange->members.lane;
  // With a separate device, work in host memory does not use the device's streams.
  if (communicates(a.op) && (a.op != Op::exchange || lane_of(tier_of(a)) != Lane::update)) return Lane::communication;
  return is_message(a.op) ? messages_.of(a) : lane_of(tier_of(a));
}

Lane ActionPlaces::lane_of(Tier tier) const { return separate_device_ && tier == Tier::host ? Lane::update : Lane::compute; }

}  // namespace terrace::mapping
