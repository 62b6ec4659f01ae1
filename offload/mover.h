// Carries out moves: copies between device and host on two streams, reads and writes of the store on one I/O thread.
//
// A move starts when its clock has passed and ends by advancing its lane's timeline to its sequence number, in order.
//
// Owner:   executor or chunk manager. Threads: issue() from one thread, in decision order; never blocks on I/O.
// Errors:  a failed move poisons its lane with an Error that names chunk, tier, file, offset, bytes and errno; moves behind it
// are
//          not started, and a move that waits for a lane that failed ends with that lane's error. A failed write-back leaves
//          its source bytes alone. Checksums are computed at write and verified at read. Whoever stops producing on a lane that
//          moves wait for must fail it first (Lanes::fail_all): draining waits for every move that still may start.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <terrace/core/device.h>
#include <terrace/core/trace.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/offload/io_engine.h>
#include <terrace/offload/lanes.h>

namespace terrace {

class Mover {
 public:
  struct Parts {
    Device* device = nullptr;
    std::byte* device_base = nullptr;  // offset 0 of the device tier
    std::byte* host_base = nullptr;    // offset 0 of the host tier
    ChunkStore* store = nullptr;       // may be null: no disk tier
    IoEngine* engine = nullptr;        // null exactly when the store is
    const Lanes* lanes = nullptr;
    Trace* trace = nullptr;                    // may be null
    std::uint64_t request_bytes = 4ULL << 20;  // a read or write is cut into requests of this size
    // A read or write that has not ended by then ends its lane with an error that names it (0: waited for without end). The
    // kernel may still carry it out: `held` is a share in store, engine and host memory, kept until it has ended, however late.
    std::chrono::nanoseconds deadline = kIoDeadline;
    std::shared_ptr<void> held = {};
  };
  explicit Mover(const Parts& parts);
  ~Mover();  // drains
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void issue(const Move& move);
  void drain();                         // until everything issued has ended; throws the first error
  [[nodiscard]] Traffic moved() const;  // what was really carried, counted at completion

  // Why a lane's operation ended when it did: for stall accounting. The last few thousand flights of each lane are kept.
  struct Flight {
    std::uint64_t sequence = 0;
    std::int64_t issued_ns = 0, started_ns = 0, ended_ns = 0;
    Lane waited_for = Lane::compute;  // the lane whose operation it waited for last
  };
  [[nodiscard]] bool find(Lane lane, std::uint64_t sequence, Flight& flight) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
