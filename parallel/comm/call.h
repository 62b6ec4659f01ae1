// One communication as a value: the operation, its bytes and its ranks. Decorators count, delay or refuse calls without
// knowing their kinds; backends switch on the operation.
//
// Owner:   the bytes belong to the caller until the call has ended on its stream.
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/comm/fold.h>

namespace terrace::comm {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

enum class Operation : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  reduce,
  broadcast,
  all_to_all,
  barrier,
  split,
  send,  // from here on between two ranks only
  receive,
};
std::string_view name_of(Operation operation);  // "all-gather"
constexpr bool is_collective(Operation operation) { return operation < Operation::send; }

struct Call {
  Operation operation = Operation::barrier;
  Reduction reduction = {};           // for operations that reduce
  std::vector<ConstBytes> from = {};  // one span; for all-to-all one per rank
  std::vector<Bytes> to = {};         // likewise
  int peer = -1;                      // root, destination or source
  int lane = 0;                       // send and receive
  // The bytes are in GPU memory and another transport moves them: transports on the host only make the ranks meet for the call.
  bool on_device = false;
  // Waits for other ranks without a time limit, because they may be using their disks. The wait still fails if a rank dies or
  // leaves.
  bool patient = false;
  [[nodiscard]] std::uint64_t payload_bytes() const;
};

// "reduce-scatter of 4194304 bytes (fp32 sum)", "receive of 64 bytes from rank 3 on lane 1"
std::string to_string(const Call& call);

// The bytes that `rank` of `size` must send when no byte is sent twice: the volume formulas of the literature.
std::uint64_t sent_bytes(const Call& call, int rank, int size);

// A hash of everything that must be equal on all ranks of a collective, for ranks that cannot see each other's calls.
std::uint64_t signature_of(const Call& call);

// Block `rank` of `count` elements divided into `size` blocks; if they cannot be equal, the first ones have one element more.
struct Block {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
constexpr Block block_of(std::int64_t count, int rank, int size) {
  const std::int64_t each = count / size, more = count % size;
  return {each * rank + (rank < more ? rank : more), each + (rank < more ? 1 : 0)};
}

}  // namespace terrace::comm
