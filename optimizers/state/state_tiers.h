// The chunks of an optimizer's states in three tiers, and operations on them in the order of one stream.
//
// An operation's moves are decided and issued when it is enqueued, long before it runs: it waits in its stream until its bytes
// are there, and a chunk that leaves memory is written as soon as the operation that changed it has ended. So reads of later
// chunks, the operation and writes of earlier chunks run side by side, as far ahead as the budgets allow.
//
// Owner:   an OptimizerState; borrows the device. Destroyed only after its operations have ended; it waits for them.
// Threads: one at a time.
// Errors:  DoesNotFit if the chunks of one operation cannot be placed; those of the disk tier and of KeptChunks. A failed move
//          fails the operations that need it, and the stream with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/memory/eviction.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/offload/manager/kept_chunks.h>
#include <terrace/offload/move/tier_stack.h>

namespace terrace::rules {

class StateTiers {
 public:
  StateTiers(const OffloadOptions& options, Device& device);
  ~StateTiers();
  StateTiers(const StateTiers&) = delete;
  StateTiers& operator=(const StateTiers&) = delete;

  [[nodiscard]] bool lasts() const { return kept_.has_value(); }  // whether the chunks outlive the process
  ChunkId add(ChunkDescription description);                      // `label`: its name
  [[nodiscard]] const Budget& budget() const { return budget_; }
  [[nodiscard]] bool has_content(ChunkId chunk) const { return residency_.has_content(chunk); }
  // `enqueue` is called now, with the places of the uses in `tier`, and submits the operation's work to the stream.
  using Enqueue = std::function<void(std::span<std::byte* const> places)>;
  void run(Stream& stream, std::span<const Use> uses, Tier tier, const Enqueue& enqueue);
  void wait() const;  // until every operation has ended; throws the error of one that failed

  void commit(std::uint64_t step, const std::string& payload);
  [[nodiscard]] std::optional<Commit> last_commit() const;
  [[nodiscard]] std::vector<std::string> left_out() const;
  [[nodiscard]] std::string folder() const;  // of the store, for messages

  [[nodiscard]] memory::Traffic traffic() const { return tiers_.mover().moved(); }
  void finish_writes() const;  // until all moves issued so far have ended
  [[nodiscard]] PerTier<std::uint64_t> peak_bytes() const;

 private:
  void issue(const std::vector<Move>& moves);
  void submit(Stream& stream, std::uint64_t operation, const std::function<void()>& enqueue);

  Device& device_;
  const Budget budget_;
  offload::TierStack tiers_;
  memory::Lru policy_;  // sweeps change their direction, so the least recently used chunk is the one needed last
  memory::Residency residency_;
  std::optional<offload::KeptChunks> kept_;
  std::uint64_t operations_ = 0;
  const Stream* last_stream_ = nullptr;
};

}  // namespace terrace::rules
