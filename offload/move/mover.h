// Carries out moves: copies between device and host on two streams, reads and writes of the store on one I/O thread.
//
// A move starts when its clock has been reached, and ends by advancing its lane's timeline to its sequence number, in order.
//
// Owner:   executor or chunk manager. Threads: issue() from one thread, in decision order; never blocks on I/O.
// Errors:  a failed move fails its lane with an Error that names chunk, tier, file, offset, bytes and errno. Later moves of the
//          lane are not started, and a move that waits for a failed lane ends with that lane's error. A failed write-back does
//          not change its source bytes. Checksums are computed at write and verified at read. A producer that stops must first
//          fail its lanes (Lanes::fail_all), because draining waits for every move that may still start.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <terrace/core/base/trace.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/event.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/move/lanes.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::offload {

class Mover {
 public:
  struct Parts {
    Device* device = nullptr;
    std::byte* device_base = nullptr;  // offset 0 of the device tier
    std::byte* host_base = nullptr;    // offset 0 of the host tier
    ChunkStore* store = nullptr;       // may be null: no disk tier
    IoEngine* engine = nullptr;        // null if and only if the store is null
    const Lanes* lanes = nullptr;
    Trace* trace = nullptr;                    // may be null
    std::uint64_t request_bytes = 4ULL << 20;  // a read or write is cut into requests of this size
    // A read or write that takes longer fails its lane with an error that names it (0: no limit). The kernel may still carry it
    // out: `held` shares ownership of store, engine and host memory until it has ended.
    std::chrono::nanoseconds deadline = io::kIoDeadline;
    std::shared_ptr<void> held = {};
  };
  explicit Mover(const Parts& parts);
  ~Mover();  // drains
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void issue(const Move& move);
  void drain();                                 // until everything issued has ended; throws the first error
  [[nodiscard]] Event written() const;          // when all writes to the disk issued so far have ended
  [[nodiscard]] memory::Traffic moved() const;  // counted at completion

  // When a lane's operation ended and which lane delayed it, for stall accounting. The last few thousand flights of each lane
  // are kept.
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

}  // namespace terrace::offload
