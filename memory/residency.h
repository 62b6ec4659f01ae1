// Which tiers hold valid bytes of each chunk, and what must move for the next use. Pure: no thread, no I/O, no clock.
//
// Every decision (move, victim, place) is made in the call that needs it, in program order, as if all earlier decisions had
// already been carried out. Clocks make this correct: every move and every grant carries the clock of operations that it must
// wait for. A completion changes nothing here, so a simulator and an executor that make the same calls get the same answers,
// and a run does what was planned.
//
// Owner:   one executor, simulator or chunk manager. Threads: none of its own; the owner serialises (one mutex).
// Errors:  DoesNotFit when a request cannot be placed; moves already emitted stay valid and must be carried out.
//          std::logic_error for a broken protocol (reading a chunk without content, releasing a chunk that is not held).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/clock_table.h>
#include <terrace/memory/eviction.h>
#include <terrace/memory/space.h>

namespace terrace::memory {

struct DoesNotFit : Error {
  DoesNotFit(Tier full, std::uint64_t missing, const std::string& what)
      : Error(what, ErrorKind::does_not_fit), tier(full), missing_bytes(missing) {}
  Tier tier;
  std::uint64_t missing_bytes;
};

// Bytes moved over each edge, and their number.
struct Traffic {
  std::uint64_t upload = 0, download = 0, read = 0, write = 0;      // bytes
  std::uint64_t uploads = 0, downloads = 0, reads = 0, writes = 0;  // moves
  void add(const Move& move);
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

class Residency {
 public:
  // `generations`: a state chunk (not a gradient or an activation) has a disk place of this many times its bytes, with
  // generation g at offset + g · bytes, so that a commit can be copy-on-write.
  Residency(Budget budget, EvictionPolicy& policy, std::uint32_t generations = 1);

  // A run of `count` chunks of `bytes` each (page multiples), without content. Ids are consecutive from the returned one.
  // `end`: the end of each space from which its places are taken, except on disk, which is filled from its low end. On disk a
  // chunk keeps one place from its first write until drop().
  ChunkId add_run(std::uint32_t count, std::uint64_t bytes, ChunkKind kind, End end);
  ChunkId add(std::uint64_t bytes, ChunkKind kind, End end) { return add_run(1, bytes, kind, end); }
  // Another size for a chunk that is alone in its run, and has neither content nor a place.
  void resize(ChunkId chunk, std::uint64_t bytes);
  // For resume: reserves the chunk's place on disk and marks its content as valid there.
  void adopt_on_disk(ChunkId chunk);
  // The same for a chunk whose place begins at this offset of the disk, which must be free.
  void adopt_on_disk(ChunkId chunk, std::uint64_t place_offset);
  // Reserves a disk place for the chunk now, so that a commit can never run out of space in the middle.
  void reserve_on_disk(ChunkId chunk);

  struct Granted {
    std::vector<std::uint64_t> offsets;  // the offset of each use in the tier's space
    Clock after;                         // reached once all content has arrived and all earlier users of the places are done
  };
  // All or nothing: gives every use a place in `tier` (device or host) and pins it until release(). Emits the moves that bring
  // content and make room. Chunks of one run get contiguous places on the device. Steps: (1) take what is there, (2) make room
  // by evicting other chunks, (3) if the bytes suffice but every hole is too small, evict everything unpinned and place all
  // uses again, (4) else DoesNotFit. A chunk to be overwritten loses its old content at once, even if the request then does not
  // fit.
  Granted acquire(std::span<const Use> uses, Tier tier, std::vector<Move>& moves);
  // Ends the uses; `last` is the clock of the operation that used them, for which later moves wait. A written chunk is then
  // valid in this tier only; its other copies are dropped.
  void release(std::span<const Use> uses, Tier tier, const Clock& last);
  // A hint: brings content into `tier` (through the host if needed) unless that evicts something needed sooner. True if the
  // content is there or on its way.
  bool prefetch(ChunkId chunk, Tier tier, std::vector<Move>& moves);
  // A hint for a chunk without content: reserves its place now, so that the write need not wait for evictions. It never
  // evicts a chunk that is needed sooner, or one from the host. The place may be taken again, like any place that is not in
  // use. With a disk tier below the host, however small, it does nothing and returns true. False: no place now; it may be
  // called again.
  bool place_ahead(ChunkId chunk, Tier tier, std::vector<Move>& moves);
  // The opposite hint: frees the chunk's place on the device now, and sends its content down if no other tier has it, making
  // room below as an eviction does. Does nothing if the chunk is in use or there is no room below. True if the chunk is not on
  // the device any more, or on its way out.
  bool offload(ChunkId chunk, std::vector<Move>& moves);
  // Drops the content: all copies, without writing back. Disk places of state chunks stay reserved.
  void drop(ChunkId chunk);
  // Makes the disk copy valid and keeps the other copies (for a commit). Emits no move if it already is. Moves also wait for
  // `not_before`.
  void flush(ChunkId chunk, const Clock& not_before, std::vector<Move>& moves);

  [[nodiscard]] bool valid(ChunkId chunk, Tier tier) const { return copy(chunk, tier).valid; }
  [[nodiscard]] bool has_content(ChunkId chunk) const { return at(chunk).content; }
  [[nodiscard]] std::uint64_t bytes_of(ChunkId chunk) const { return run_of(chunk).bytes; }
  [[nodiscard]] ChunkKind kind_of(ChunkId chunk) const { return run_of(chunk).kind; }
  [[nodiscard]] std::uint64_t offset_on_disk(ChunkId chunk) const;
  [[nodiscard]] const Space& space(Tier tier) const { return space_[tier]; }
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  [[nodiscard]] std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_.size()); }
  [[nodiscard]] const Clock& issued() const { return issued_; }  // how many moves each lane has been given
  // The invariants: places within budget and disjoint, a chunk with content is valid somewhere, a pinned chunk has its place,
  // a run's device places are contiguous, space totals match. Throws std::logic_error that names the chunk.
  void check() const;

 private:
  class TierCheck;  // check()
  static constexpr std::uint32_t kUnlisted = ~0U;

  // A chunk's place in one tier, and whether its content is there.
  struct Copy {
    bool placed = false;
    bool valid = false;
    std::uint32_t pins = 0;
    std::uint64_t offset = 0;
  };
  // Kept apart from Copy: the search for a victim scans thousands of copies without reading clocks.
  struct Clocks {
    ClockTable::Ref ready;  // the operations that produce the content
    ClockTable::Ref busy;   // all operations that touch the place, including those of `ready` and of earlier occupants
  };
  // The chunks that are placed and evicted together: a run on the device, a single chunk elsewhere. Named by the first chunk.
  struct Unit {
    std::uint32_t pins = 0;
    std::uint32_t valid = 0, only = 0;                                  // how many of its chunks are valid here, and only here
    std::array<std::uint32_t, kLeavings> listed{kUnlisted, kUnlisted};  // positions in evictable_
    bool held = false;                                                  // part of the current request: must not be evicted
    bool promised = false;                                              // place_ahead(): keeps its place without content
    bool stale = false;                                                 // in stale_
  };
  struct Chunk {
    RunId run{};
    bool content = false;
    bool writing = false;       // leased for writing
    bool kept_on_disk = false;  // the disk place outlives the content
    bool spare = false;         // in spare_on_disk_
    PerTier<Copy> copy;
    PerTier<Unit> unit;
  };
  struct Run {
    ChunkId first{};
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    ChunkKind kind{};
    End end{};
  };
  struct Shortage {
    Tier tier{};
    std::uint64_t bytes = 0, missing_bytes = 0;
  };
  // The context of one call: where its moves go, and what they wait for.
  struct Order {
    std::vector<Move>& moves;
    std::span<const Use> sources = {};      // uses whose host copies may go to disk if nothing else can be evicted
    Clock not_before = {};                  // moves wait for it, too
    std::optional<Shortage> shortage = {};  // why it failed
  };
  struct Victims {
    std::vector<ChunkId> device, host;
  };

  Chunk& at(ChunkId c) { return chunks_.at(index(c)); }
  [[nodiscard]] const Chunk& at(ChunkId c) const { return chunks_.at(index(c)); }
  Copy& copy(ChunkId c, Tier t) { return at(c).copy[t]; }
  [[nodiscard]] const Copy& copy(ChunkId c, Tier t) const { return at(c).copy[t]; }
  Clocks& clocks(ChunkId c, Tier t) { return clocks_.at(index(c))[t]; }
  [[nodiscard]] const Clocks& clocks(ChunkId c, Tier t) const { return clocks_.at(index(c))[t]; }
  [[nodiscard]] const Run& run_of(ChunkId c) const { return runs_[index(at(c).run)]; }
  [[nodiscard]] ChunkId head(ChunkId c, Tier t) const { return t == Tier::device ? run_of(c).first : c; }
  [[nodiscard]] std::span<const ChunkId> members(ChunkId head, Tier t) const;
  [[nodiscard]] std::uint64_t place_bytes(ChunkId c, Tier t) const;  // of one chunk
  // A disk place is the lowest that fits, so it does not depend on the space above it: a run whose disk tier was cut to the
  // size that its plan needs takes the same places and makes the same decisions as the plan.
  [[nodiscard]] End end_of(ChunkId c, Tier t) const { return t == Tier::disk ? End::low : run_of(c).end; }
  [[nodiscard]] std::uint64_t unit_bytes(ChunkId head, Tier t) const { return members(head, t).size() * place_bytes(head, t); }
  [[nodiscard]] bool counts(Tier t) const { return t != Tier::disk || !budget_.commit_only; }  // for valid_elsewhere()
  [[nodiscard]] bool valid_elsewhere(ChunkId c, Tier t) const;
  // All content of the unit is valid elsewhere, too.
  [[nodiscard]] bool free_to_give_up(ChunkId head, Tier t) const { return at(head).unit[t].only == 0; }

  // Places (residency_places.cpp)
  void place(ChunkId head, Tier t, const Space::Reserved& reserved);
  void unplace(ChunkId head, Tier t);
  void settle(ChunkId head, Tier t);  // frees the place if nothing needs it
  void relist(ChunkId head, Tier t);  // marks its entries in evictable_ as out of date
  void update_lists(Tier t);          // call before reading evictable_
  void list(ChunkId head, Tier t, Leaving leaving, bool evictable);
  void set_valid(ChunkId c, Tier t, bool valid);  // also updates the unit's counts
  void hold(ChunkId head, Tier t, bool held);
  void pin(ChunkId c, Tier t);
  void unpin(ChunkId c, Tier t);
  void give_up(ChunkId c, Tier t);
  void reserve_disk_place(ChunkId c);
  void keep_on_disk(ChunkId c, bool kept);
  void list_spare(ChunkId c);  // updates spare_on_disk_

  // Moves and room for them (residency_room.cpp). On failure, they return false and set Order::shortage.
  void emit(ChunkId c, Tier from, Tier to, Order& order);
  bool bring(ChunkId c, Tier to, Order& order);
  bool evict(ChunkId head, Tier t, Order& order);
  bool room(ChunkId head, Tier t, Order& order);
  std::optional<ChunkId> next_victim(Tier t, bool only_free, const Order& order);
  std::optional<Victims> plan_prefetch(ChunkId c, Tier t);
  bool evict_all(const Victims& victims, Order& order);
  enum class Enough : std::uint8_t { not_yet, yes, never };
  bool collect_victims(Tier t, ChunkId incoming, const std::function<Enough(ChunkId)>& judge);

  // The steps of acquire()
  void demand_grantable(std::span<const Use> uses, Tier tier) const;
  bool place_all(std::span<const Use> uses, Tier tier, Order& order);
  bool clear(std::span<const Use> uses, Tier tier, Order& order);
  bool bring_all(std::span<const Use> uses, Tier tier, Order& order);
  [[nodiscard]] DoesNotFit does_not_fit(const Shortage& shortage) const;

  Budget budget_;
  EvictionPolicy& policy_;
  std::uint32_t generations_;
  std::vector<Run> runs_;
  std::vector<Chunk> chunks_;
  ClockTable table_;
  std::vector<PerTier<Clocks>> clocks_;  // by chunk
  std::vector<ChunkId> ids_;             // 0, 1, 2, …: members() returns spans of it
  PerTier<Space> space_;
  // By Leaving: units that have a place and are neither pinned nor held; then only those of them that are free to give up.
  // Disk: unused.
  std::array<PerTier<std::vector<ChunkId>>, kLeavings> evictable_;
  // Units that have changed since the lists were read. Most change back before that: every use pins and unpins its chunks.
  PerTier<std::vector<ChunkId>> stale_;
  // Chunks on disk whose content is also valid elsewhere and whose disk places are not kept: the victims of a full disk.
  std::set<ChunkId> spare_on_disk_;
  PerTier<std::uint64_t> pinned_bytes_{};
  Traffic traffic_;
  Clock issued_;
};

}  // namespace terrace::memory
