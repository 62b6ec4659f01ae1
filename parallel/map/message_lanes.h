// The lanes on which a rank of a pipeline sends and receives: one for each direction, payload and peer, so that a message waits
// only for earlier messages of its own kind.
//
// Owner:   an ActionPlaces. Pure. Threads: const after construction.
// Errors:  Error(ErrorKind::refused) for a rank with more neighbours than there are lanes.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/memory/tier.h>
#include <terrace/parallel/map/parameter_layout.h>
#include <terrace/parallel/mesh/pipeline_parallel.h>
#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/program/program.h>

namespace terrace::mapping {

class MessageLanes {
 public:
  MessageLanes(const mesh::HeldLayers& pipeline, const model::Skips& skips, const ParameterLayout& layout);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(lanes_.size()); }
  [[nodiscard]] Lane of(const Action& message) const;

 private:
  // Adds the lane of messages between two ranks, if one of them is this one and they differ.
  void add(std::uint32_t me, std::uint32_t from, std::uint32_t to, Payload payload);

  struct PeerLane {
    Op op{};
    Payload payload{};
    std::uint32_t peer = 0;
    friend bool operator==(const PeerLane&, const PeerLane&) = default;
  };
  std::vector<PeerLane> lanes_;  // [number after Lane::message]
};

}  // namespace terrace::mapping
