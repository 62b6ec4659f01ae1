// Which tiers hold valid bytes of each chunk, and what must move for the next use. Pure: no thread, no I/O, no clock.
//
// Every decision (move, victim, place) is taken when it is asked for, in program order, as if everything decided before
// had already happened. What makes that true is the clocks: every move and every grant carries the clock of operations it
// must wait for. A completion changes nothing here, so a simulator and an executor that ask the same questions get
// the same answers, and what was planned is what happens.
//
// Owner:   one executor, simulator or chunk manager. Threads: none of its own; the owner serialises (one mutex).
// Errors:  DoesNotFit when a request cannot be placed; moves already emitted stay valid and must be carried out.
//          std::logic_error for a broken protocol (reading a chunk without content, releasing what is not held).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/eviction.h>
#include <terrace/memory/space.h>

namespace terrace {

struct DoesNotFit : Error {
  DoesNotFit(Tier full, std::uint64_t missing, const std::string& what)
      : Error(what, Exit::does_not_fit), tier(full), missing_bytes(missing) {}
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
  // `generations`: disk places of state chunks (not gradients, not activations) are this many times their bytes, generation
  // g at offset + g · bytes, so that a commit can be copy-on-write.
  Residency(Budget budget, EvictionPolicy& policy, std::uint32_t generations = 1);

  // A run of `count` chunks of `bytes` each (page multiples), without content. Ids are consecutive from the returned one.
  // `end` is where its places are taken. A chunk on disk keeps one place from its first write until drop().
  ChunkId add_run(std::uint32_t count, std::uint64_t bytes, Kind kind, End end);
  ChunkId add(std::uint64_t bytes, Kind kind, End end) { return add_run(1, bytes, kind, end); }
  // Content that is on disk already (resume): valid there, at a place reserved now.
  void adopt_on_disk(ChunkId chunk);
  // Reserves a disk place for the chunk now, so that a commit can never run out of space in the middle.
  void reserve_on_disk(ChunkId chunk);

  struct Granted {
    std::vector<std::uint64_t> offsets;  // of each use, in the tier's space
    Clock after;                         // when all content is there and all places are free of earlier users
  };
  // All or nothing: every use at `tier` (device or host), pinned until release. Emits the moves that bring content and make
  // room. `not_before` joins the clock of every move emitted (what paces prefetching). Chunks of one run are granted contiguous
  // places on the device. Order: (1) take what is there, (2) make room, evicting what is not asked for, (3) if holes are
  // too small though bytes suffice, clear the tier of everything unpinned and place all anew, (4) else DoesNotFit.
  // A chunk asked for to be overwritten loses its old content at once, also when the request then does not fit.
  Granted acquire(std::span<const Use> uses, Tier tier, const Clock& not_before, std::vector<Move>& moves);
  // The uses end; `last` is the clock of the operation that used them (what later movers must wait for). A written chunk is
  // valid in this tier only, all other copies are given up.
  void release(std::span<const Use> uses, Tier tier, const Clock& last);
  // A hint: brings content into `tier` (through the host where needed) if that costs nothing needed sooner. Returns whether it
  // is (going to be) there.
  bool prefetch(ChunkId chunk, Tier tier, const Clock& not_before, std::vector<Move>& moves);
  // A hint, too, of a chunk without content: takes a place for what will be written there, if that costs nothing needed sooner
  // and nobody's place on the host, so that whoever writes it need not wait for others to leave. Until then the place may be
  // taken for something else, as any that is not in use. Not where a disk is below the host. False: it may be asked for again.
  bool place_ahead(ChunkId chunk, Tier tier, const Clock& not_before, std::vector<Move>& moves);
  // The opposite hint: the chunk's place on the device is given up now, its content is sent down where nothing else holds it.
  // Room is made below as an eviction makes it. A chunk in use or without a place stays as it is, and so does one for which
  // there is no room below. Returns whether it is (going to be) gone.
  bool offload(ChunkId chunk, const Clock& not_before, std::vector<Move>& moves);
  // The content is dead: every copy is given up, nothing is written back. Disk places of state chunks stay reserved.
  void drop(ChunkId chunk);
  // Makes the disk copy valid without giving up others (a commit). No move when it already is.
  void flush(ChunkId chunk, const Clock& not_before, std::vector<Move>& moves);

  [[nodiscard]] bool valid(ChunkId chunk, Tier tier) const { return copy(chunk, tier).valid; }
  [[nodiscard]] bool has_content(ChunkId chunk) const { return at(chunk).content; }
  [[nodiscard]] std::uint64_t bytes_of(ChunkId chunk) const { return run_of(chunk).bytes; }
  [[nodiscard]] Kind kind_of(ChunkId chunk) const { return run_of(chunk).kind; }
  [[nodiscard]] std::uint64_t offset_on_disk(ChunkId chunk) const;
  [[nodiscard]] const Space& space(Tier tier) const { return space_[tier]; }
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  [[nodiscard]] std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_.size()); }
  [[nodiscard]] const Clock& issued() const { return issued_; }  // how many moves each lane was given so far
  // The invariants: places within budget and disjoint, a chunk with content is valid somewhere, a pinned chunk has its place,
  // a run's device places are contiguous, space totals match. Throws std::logic_error that names the chunk.
  void check() const;

 private:
  static constexpr std::uint32_t kUnlisted = ~0U;

  // A chunk's place in one tier, and whether its content is there.
  struct Copy {
    bool placed = false;
    bool valid = false;
    std::uint32_t pins = 0;
    std::uint64_t offset = 0;
  };
  // Kept apart from it: clocks are long, and whoever looks for a victim passes over thousands of copies and reads no clock.
  struct Clocks {
    Clock ready;  // the operations that produce the content
    Clock busy;   // all operations that touch the place, those of `ready` and of earlier occupants included
  };
  // What is placed and evicted as one: a run on the device, a chunk elsewhere. Named by its first chunk.
  struct Unit {
    std::uint32_t pins = 0;
    std::uint32_t valid = 0, only = 0;                                  // chunks of it that are valid here; and nowhere else
    std::array<std::uint32_t, kLeavings> listed{kUnlisted, kUnlisted};  // positions in evictable_
    bool held = false;                                                  // a part of the request being decided: no victim
    bool promised = false;                                              // place_ahead(): kept though nothing is there yet
  };
  struct Chunk {
    RunId run{};
    bool content = false;
    bool writing = false;       // a lease that writes has it
    bool kept_on_disk = false;  // the disk place outlives the content
    bool spare = false;         // in spare_on_disk_
    PerTier<Copy> copy;
    PerTier<Unit> unit;
  };
  struct Run {
    ChunkId first{};
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    Kind kind{};
    End end{};
  };
  struct Shortage {
    Tier tier{};
    std::uint64_t bytes = 0, missing_bytes = 0;
  };
  // One call's context: where moves go and what paces them.
  struct Order {
    const Clock& not_before;
    std::vector<Move>& moves;
    std::span<const Use> sources;      // uses whose host copies may be pushed to disk when nothing else can give way
    std::optional<Shortage> shortage;  // why it failed
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
  [[nodiscard]] std::uint64_t unit_bytes(ChunkId head, Tier t) const { return members(head, t).size() * place_bytes(head, t); }
  [[nodiscard]] bool counts(Tier t) const { return t != Tier::disk || !budget_.commit_only; }  // content there is kept
  [[nodiscard]] bool valid_elsewhere(ChunkId c, Tier t) const;
  // Every content of the unit is valid elsewhere.
  [[nodiscard]] bool free_to_give_up(ChunkId head, Tier t) const { return at(head).unit[t].only == 0; }

  // Places (residency_places.cpp)
  void place(ChunkId head, Tier t, const Space::Reserved& reserved);
  void unplace(ChunkId head, Tier t);
  void settle(ChunkId head, Tier t);  // frees a place that nothing needs
  void relist(ChunkId head, Tier t);  // keeps evictable_ true
  void list(ChunkId head, Tier t, Leaving leaving, bool evictable);
  void set_valid(ChunkId c, Tier t, bool valid);  // and what is counted of it
  void hold(ChunkId head, Tier t, bool held);
  void pin(ChunkId c, Tier t);
  void unpin(ChunkId c, Tier t);
  void give_up(ChunkId c, Tier t);
  void reserve_disk_place(ChunkId c);
  void keep_on_disk(ChunkId c, bool kept);
  void list_spare(ChunkId c);  // keeps spare_on_disk_ true

  // Moves and room for them (residency_room.cpp); false: Order::shortage says why
  void emit(ChunkId c, Tier from, Tier to, Order& order);
  bool bring(ChunkId c, Tier to, Order& order);
  bool evict(ChunkId head, Tier t, Order& order);
  bool room(ChunkId head, Tier t, Order& order);
  std::optional<ChunkId> next_victim(Tier t, bool only_free, const Order& order);
  std::optional<Victims> plan_prefetch(ChunkId c, Tier t);
  bool evict_all(const Victims& victims, Order& order);
  std::optional<ChunkId> worthwhile_victim(Tier t, ChunkId incoming, std::span<const ChunkId> spared,
                                           std::span<const ChunkId> gone);

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
  std::vector<PerTier<Clocks>> clocks_;  // by chunk
  std::vector<ChunkId> ids_;             // 0, 1, 2, …: what members() gives spans of
  PerTier<Space> space_;
  // Units with a place, neither pinned nor held, and those of them that are free to give up; disk: unused.
  std::array<PerTier<std::vector<ChunkId>>, kLeavings> evictable_;
  // Chunks whose content on the disk is elsewhere, too, and whose places there are not kept: a full disk's victims.
  std::set<ChunkId> spare_on_disk_;
  PerTier<std::uint64_t> pinned_bytes_{};
  Traffic traffic_;
  Clock issued_;
};

}  // namespace terrace
