// The place of each action: the tier that its chunks must be in, and the lane that runs it.
//
// Owner:   a StepMap, whose phases it borrows. Pure. Threads: const after construction. Errors: Error(ErrorKind::refused) for a
// message without a lane.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/memory/tier.h>
#include <terrace/parallel/map/layer_phases.h>
#include <terrace/parallel/map/message_lanes.h>
#include <terrace/parallel/model/update_place.h>
#include <terrace/parallel/program/program.h>

namespace terrace::mapping {

class ActionPlaces {
 public:
  // `separate_device`: the device has its own processor, and work in host memory runs beside it. `updates_of`: update actions
  // of each layer on this rank.
  ActionPlaces(const UpdatePlace& update, bool separate_device, const LayerPhases& phases,
               const std::vector<std::uint32_t>& updates_of, MessageLanes messages);

  [[nodiscard]] Tier tier_of(const Action& action) const;
  [[nodiscard]] Lane lane_of(const Action& action) const;
  [[nodiscard]] Lane lane_of(Tier tier) const;  // the lane that computes in that memory
  [[nodiscard]] const MessageLanes& messages() const { return messages_; }

 private:
  UpdatePlace update_;
  bool separate_device_;
  const LayerPhases& phases_;
  std::vector<std::uint32_t> first_update_;  // [layer]: the number of its first update
  MessageLanes messages_;
};

}  // namespace terrace::mapping
