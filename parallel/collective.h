// What an action exchanges with other ranks, as data: the operation, its members, and the bytes of which chunks. The uses of
// the action, its costs and bytes by link, the comparison of ranks and the execution all read these records: what a gather or a
// reduction of the program is, is written in collective.cpp and nowhere else.
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
#include <terrace/parallel/data_parallel.h>
#include <terrace/parallel/groups.h>
#include <terrace/parallel/program.h>

namespace terrace {

class StepMap;
struct Programs;

// Bytes inside a run of chunks that are adjacent in memory. All chunks of the run are used, also by a part of its bytes.
struct ChunkBytes {
  ChunkId first{};
  std::uint32_t chunks = 0;  // 0: not in chunks (losses, squares of gradients), or nothing
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const ChunkBytes&, const ChunkBytes&) = default;
};

struct Collective {
  Operation operation = Operation::all_gather;
  Members members = {};
  ChunkBytes from = {}, to = {};
  Reduction reduction = {};                             // of a sum; of `from` as it travels
  Travel wire = Travel::whole;                          // how `from` travels
  DType dtype = DType::fp32;                            // of numbers that are packed for the way
  std::uint32_t peer = 0;                               // of a broadcast and of messages: the number of a member
  std::uint32_t lane = 0;                               // of messages
  std::vector<std::uint64_t> sent = {}, received = {};  // of an all-to-all: bytes to and from each member
  std::uint32_t neighbours = 0;                         // of an all-to-all: so many exchange with each other; 0: all
  bool told = false;                                    // `sent` and `received` are usual ones; a run has others
  friend bool operator==(const Collective&, const Collective&) = default;
};
// In the order in which they are issued.
std::vector<Collective> collectives_of(const StepMap& map, const Action& action);
// The losses of a step, which all ranks share at its end.
Collective losses_of(const StepMap& map);
// The squares of one update, which the ranks that together hold one replica of the state share; empty if each has them all.
std::optional<Collective> squares_of(const StepMap& map);
// All members that some collective of these programs has.
std::set<Members> members_of(const StepMap& map, const Programs& programs);

// What the whole is as it travels: the result of a gather, what is reduced, a message.
std::uint64_t wire_bytes(const Collective& collective);
// What a collective uses, in order. A chunk that it reads and writes is named once.
std::vector<Use> uses_of(const StepMap& map, std::span<const Collective> collectives);

}  // namespace terrace
