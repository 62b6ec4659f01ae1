// The collectives and messages of an action, as data: the operation, its members, and which bytes of which chunks. The action's
// uses, its costs, its bytes by link, the comparison of ranks and the execution all read these records, so only collective.cpp
// defines what a gather or a reduction of a program does.
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <terrace/memory/residency.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/mesh/data_parallel.h>
#include <terrace/parallel/mesh/groups.h>
#include <terrace/parallel/program/program.h>

namespace terrace {
class StepMap;
}  // namespace terrace

namespace terrace::mapping {

// Bytes inside a run of chunks that are adjacent in memory. All chunks of the run count as used, even if only a part of the
// bytes is.
struct ChunkBytes {
  ChunkId first{};
  std::uint32_t chunks = 0;  // 0: not in chunks (losses, squares of gradients), or nothing
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const ChunkBytes&, const ChunkBytes&) = default;
};

struct Collective {
  comm::Operation operation = comm::Operation::all_gather;
  mesh::Members members = {};
  ChunkBytes from = {}, to = {};
  comm::Reduction reduction = {};                       // of a sum; describes the numbers as they travel
  Travel wire = Travel::whole;                          // the wire dtype of `from`
  DType dtype = DType::fp32;                            // of the numbers, before they are packed for the wire
  std::uint32_t peer = 0;                               // of a broadcast or a message: the member's number
  std::uint32_t lane = 0;                               // of messages
  std::vector<std::uint64_t> sent = {}, received = {};  // of an all-to-all: bytes to and from each member
  std::uint32_t neighbours = 0;                         // of an all-to-all: ranks that exchange with each other; 0: all
  bool told = false;                                    // `sent` and `received` are estimates; a run reads the real sizes
  friend bool operator==(const Collective&, const Collective&) = default;
};
// In the order in which they are issued.
std::vector<Collective> collectives_of(const StepMap& map, const Action& action);
// The sum of a step's losses over all ranks, at the step's end.
Collective losses_of(const StepMap& map);
// The sum of one update's squares over the ranks that together hold one replica of the state; empty if each rank has them all.
std::optional<Collective> squares_of(const StepMap& map);
// The members of all collectives in these programs.
std::set<mesh::Members> members_of(const StepMap& map, std::span<const Program* const> programs);

// The bytes on the wire: the result of a gather, the input of a reduction, or a message.
std::uint64_t wire_bytes(const Collective& collective);
// The chunks that the collectives use, in order, each only once.
std::vector<Use> uses_of(const StepMap& map, std::span<const Collective> collectives);

}  // namespace terrace::mapping
