#include <terrace/offload/manager/chunk_manager.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/manager/disk_tier.h>
#include <terrace/offload/manager/kept_chunks.h>
#include <terrace/offload/move/tier_stack.h>

namespace terrace {

// The order of members matters: `tiers`, whose mover uses the device, is destroyed before the device.
struct ChunkManager::Impl {
  explicit Impl(const OffloadOptions& options)
      : budget(offload::budget_of(options)),
        own(options.device ? nullptr : std::make_unique<OwnDevice>(options.threads, options.io.log)),
        device(options.device ? *options.device : *own->device),
        tiers(device, budget.device, budget.host),
        residency(budget, policy, offload::generations_of(options)) {
    tiers.start(offload::make_disk_tier(options, budget, this),
                {.deadline = options.io_deadline, .io = options.io, .make_io = options.make_io});
    if (!options.store.empty()) kept.emplace(*tiers.store(), residency);
    holders.resize(residency.chunks());
  }

  // The leases of a chunk: many readers, or one writer.
  struct Holders {
    std::uint32_t readers = 0;
    bool writer = false;
    [[nodiscard]] bool allow(Access access) const { return !writer && (!writes(access) || readers == 0); }
  };

  // `claimed`: the uses that the caller holds already.
  [[nodiscard]] bool free_for(std::span<const Use> uses, std::span<const ChunkId> claimed) const {
    return std::ranges::all_of(uses, [&](const Use& use) {
      return holders.at(index(use.chunk)).allow(use.access) || std::ranges::find(claimed, use.chunk) != claimed.end();
    });
  }
  void claim_emptied(std::span<const Use> uses, std::vector<ChunkId>& claimed);
  void give_back(std::span<const ChunkId> claimed);
  void hold(std::span<const Use> uses) {
    for (const auto& use : uses) {
      Holders& of = holders[index(use.chunk)];
      if (writes(use.access)) {
        of.writer = true;
      } else {
        ++of.readers;
      }
    }
    ++leases;
  }
  void demand_possible(std::span<const Use> uses, Tier tier) const;
  struct Grant {
    std::vector<std::span<std::byte>> spans;
    Clock after;
  };
  Grant grant(std::span<const Use> uses, Tier tier);
  void demand_known(ChunkId chunk) const {
    if (index(chunk) >= holders.size()) throw std::logic_error(fmt::format("ChunkManager: there is no chunk {}", index(chunk)));
  }
  void decide(std::unique_lock<std::mutex>& lock, const std::function<void(std::vector<Move>&)>& attempt);
  void release(std::span<const Use> uses, Tier tier);
  void issue_decided();

  const Budget budget;
  struct OwnDevice {
    OwnDevice(int threads, const Log& log) : pool(threads), device(make_host_device(pool, log)) {}
    ThreadPool pool;
    const std::unique_ptr<Device> device;
  };
  const std::unique_ptr<OwnDevice> own;
  Device& device;
  offload::TierStack tiers;

  std::mutex mutex;  // guards the members below, down to `decided`
  memory::Lru policy;
  memory::Residency residency;
  std::optional<offload::KeptChunks> kept;  // of a store that lasts
  std::vector<Holders> holders;             // by chunk
  std::uint64_t leases = 0, releases = 0;
  std::condition_variable released;
  std::deque<Move> decided;  // not issued yet, in decision order

  std::mutex issue_mutex;  // one issuer at a time; taken before `mutex`, never inside it
};

// Throws at once if no release could ever make the request fit.
void ChunkManager::Impl::demand_possible(std::span<const Use> uses, Tier tier) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto same = [&](const Use& other) { return other.chunk == uses[i].chunk; };
    if (std::ranges::none_of(uses.first(i), same)) bytes += residency.bytes_of(uses[i].chunk);
  }
  if (bytes <= budget.of(tier)) return;
  throw memory::DoesNotFit(
      tier, bytes - budget.of(tier),
      fmt::format("a lease of {} on the {} tier does not fit its budget of {}: {} bytes are missing", format_bytes(bytes),
                  name_of(tier), format_bytes(budget.of(tier)), bytes - budget.of(tier)));
}

// Retries after each ended lease until the request fits. A failed try may have decided moves that make room; they are carried
// out too.
void ChunkManager::Impl::decide(std::unique_lock<std::mutex>& lock, const std::function<void(std::vector<Move>&)>& attempt) {
  for (;;) {
    std::vector<Move> moves;
    std::exception_ptr refusal;
    try {
      attempt(moves);
    } catch (const memory::DoesNotFit&) {
      refusal = std::current_exception();
    }
    decided.insert(decided.end(), moves.begin(), moves.end());
    if (!refusal) return;
    const bool hopeless = leases == 0;
    const auto seen = releases;
    lock.unlock();
    issue_decided();
    if (hopeless) std::rethrow_exception(refusal);
    lock.lock();
    released.wait(lock, [&] { return releases != seen; });
  }
}

// A chunk requested for overwriting loses its content even if there is no room yet. Other threads must not see it empty, so
// their requests wait for the lease that will fill it. (Two requests never claim parts of each other: a try is made only when
// all chunks of the request are free.)
void ChunkManager::Impl::claim_emptied(std::span<const Use> uses, std::vector<ChunkId>& claimed) {
  for (const auto& use : uses) {
    Holders& of = holders[index(use.chunk)];
    if (use.access != Access::overwrite || of.writer || residency.has_content(use.chunk)) continue;
    of.writer = true;
    claimed.push_back(use.chunk);
  }
}

void ChunkManager::Impl::give_back(std::span<const ChunkId> claimed) {
  for (const ChunkId chunk : claimed) holders[index(chunk)].writer = false;
  released.notify_all();
}

ChunkManager::Impl::Grant ChunkManager::Impl::grant(std::span<const Use> uses, Tier tier) {
  std::unique_lock lock(mutex);
  for (const auto& use : uses) demand_known(use.chunk);
  demand_possible(uses, tier);
  memory::Residency::Granted granted;
  std::vector<ChunkId> claimed;
  try {
    decide(lock, [&](std::vector<Move>& moves) {
      released.wait(lock, [&] { return free_for(uses, claimed); });
      try {
        granted = residency.acquire(uses, tier, Clock{}, moves);
      } catch (const memory::DoesNotFit&) {
        claim_emptied(uses, claimed);
        throw;
      }
    });
  } catch (const memory::DoesNotFit&) {
    if (!lock.owns_lock()) lock.lock();
    give_back(claimed);
    throw;
  }
  hold(uses);
  Grant result{{}, granted.after};
  std::byte* const base = tier == Tier::device ? tiers.device_base() : tiers.host_base();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    result.spans.emplace_back(base + granted.offsets[i], residency.bytes_of(uses[i].chunk));
  }
  return result;
}

void ChunkManager::Impl::release(std::span<const Use> uses, Tier tier) {
  {
    const std::lock_guard lock(mutex);
    // The clock is empty: the holder has finished with the bytes when its lease ends, so later operations need not wait for it.
    // Moves that still read the bytes (a flush) are in the clock of their place.
    residency.release(uses, tier, Clock{});
    for (const auto& use : uses) {
      Holders& of = holders[index(use.chunk)];
      if (writes(use.access)) {
        of.writer = false;
      } else {
        --of.readers;
      }
    }
    --leases;
    ++releases;
  }
  released.notify_all();
}

// Any thread that comes here issues everything decided so far, in the order of decisions, without holding residency's mutex.
void ChunkManager::Impl::issue_decided() {
  const std::lock_guard issuing(issue_mutex);
  std::deque<Move> moves;
  {
    const std::lock_guard lock(mutex);
    moves.swap(decided);
  }
  for (const auto& move : moves) tiers.mover().issue(move);
}

ChunkManager::ChunkManager(const OffloadOptions& options) : impl_(std::make_unique<Impl>(options)) {}
ChunkManager::~ChunkManager() = default;

std::span<std::byte> Lease::bytes(std::size_t i) const {
  if (i >= spans_.size())
    throw std::logic_error(fmt::format("Lease: use {} of only {}; a moved-from lease has none", i, size()));
  return spans_[i];
}

namespace {

void demand_size(std::uint64_t bytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;  // does not overflow when rounded up to pages and summed
  if (bytes == 0 || bytes > kMost)
    throw std::logic_error(fmt::format("ChunkManager: a chunk of {} bytes; it must be 1 to 2^62", bytes));
}

}  // namespace

ChunkId ChunkManager::add(const std::string& name, std::uint64_t bytes) {
  demand_size(bytes);
  if (!impl_->kept)
    throw Error("a chunk with a name needs a store that lasts\n  give OffloadOptions::store, or leave out the name",
                ErrorKind::refused);
  const std::lock_guard lock(impl_->mutex);
  const auto chunk = impl_->kept->add({.chunk = {},
                                       .kind = ChunkKind::parameter,
                                       .dtype = "bytes",
                                       .bytes = round_up(bytes, kPageBytes),
                                       .ranges = {{.tensor = name, .first_element = 0, .elements = bytes}},
                                       .label = name});
  impl_->holders.resize(impl_->residency.chunks());
  return chunk;
}

bool ChunkManager::has_content(ChunkId chunk) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->demand_known(chunk);
  return impl_->residency.has_content(chunk);
}

ChunkId ChunkManager::add(std::uint64_t bytes) {
  demand_size(bytes);
  const std::lock_guard lock(impl_->mutex);
  // Registered as an activation, because drop() frees an activation's disk place; a parameter's place would stay reserved.
  const ChunkId chunk = impl_->residency.add(round_up(bytes, kPageBytes), ChunkKind::activation, memory::End::low);
  impl_->holders.emplace_back();
  if (impl_->tiers.store())
    impl_->tiers.store()->describe({chunk, ChunkKind::activation, "", round_up(bytes, kPageBytes), {}, ""});
  return chunk;
}

void ChunkManager::prefetch(ChunkId chunk, Tier tier) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->demand_known(chunk);
    if (impl_->holders[index(chunk)].writer) return;  // a writer uses it in its present tier
    std::vector<Move> moves;
    impl_->residency.prefetch(chunk, tier, Clock{}, moves);
    impl_->decided.insert(impl_->decided.end(), moves.begin(), moves.end());
  }
  impl_->issue_decided();
}

Lease ChunkManager::acquire(ChunkId chunk, Tier tier, Access access) {
  const Use use{chunk, access};
  return acquire(std::span(&use, 1), tier);
}

Lease ChunkManager::acquire(std::span<const Use> uses, Tier tier) {
  auto granted = impl_->grant(uses, tier);
  Lease lease;  // from here on it is released if anything fails
  lease.manager_ = this;
  lease.tier_ = tier;
  lease.uses_.assign(uses.begin(), uses.end());
  impl_->issue_decided();
  impl_->tiers.lanes().wait(granted.after);
  lease.spans_ = std::move(granted.spans);
  return lease;
}

void ChunkManager::drop(ChunkId chunk) {
  const std::lock_guard lock(impl_->mutex);
  impl_->demand_known(chunk);
  const auto& of = impl_->holders[index(chunk)];
  if (of.writer || of.readers > 0)
    throw std::logic_error(fmt::format("ChunkManager: chunk {} is dropped while leased", index(chunk)));
  if (impl_->kept && impl_->kept->has(chunk))
    throw std::logic_error(fmt::format("ChunkManager: chunk {} is dropped, but it has a name and lasts", index(chunk)));
  impl_->residency.drop(chunk);
}

void ChunkManager::flush() {
  if (!impl_->tiers.store()) throw Error("flush needs a disk tier\n  give nvme_paths and nvme_bytes", ErrorKind::refused);
  Clock written;
  {
    std::unique_lock lock(impl_->mutex);
    for (std::uint32_t i = 0; i < impl_->holders.size(); ++i) {
      impl_->decide(lock, [&](std::vector<Move>& moves) {
        impl_->released.wait(lock, [&] { return !impl_->holders[i].writer; });
        if (impl_->residency.has_content(ChunkId{i})) impl_->residency.flush(ChunkId{i}, Clock{}, moves);
      });
    }
    written[Lane::write] = impl_->residency.issued()[Lane::write];
  }
  impl_->issue_decided();
  impl_->tiers.lanes().wait(written);
}

// `issue_mutex` is held all the time, so nothing that another thread decides is written before the commit has been made.
void ChunkManager::commit(std::uint64_t step, const std::string& payload) {
  if (!impl_->kept) throw Error("commit needs a store that lasts\n  give OffloadOptions::store", ErrorKind::refused);
  const std::lock_guard issuing(impl_->issue_mutex);
  std::deque<Move> moves;
  Clock written;
  std::exception_ptr refusal;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto chunk : impl_->kept->added())
      if (impl_->holders[index(chunk)].writer)
        throw std::logic_error(fmt::format("ChunkManager: commit while chunk {} is leased for writing", index(chunk)));
    std::vector<Move> flushes;
    try {
      impl_->kept->flush(flushes);
    } catch (const memory::DoesNotFit&) {  // leases hold the host; what was decided before is carried out
      refusal = std::current_exception();
    }
    moves.swap(impl_->decided);
    moves.insert(moves.end(), flushes.begin(), flushes.end());
    written[Lane::write] = impl_->residency.issued()[Lane::write];
  }
  for (const auto& move : moves) impl_->tiers.mover().issue(move);
  if (refusal) std::rethrow_exception(refusal);
  impl_->tiers.lanes().wait(written);
  impl_->kept->commit(step, payload);
}

std::optional<Commit> ChunkManager::last_commit() const {
  return impl_->kept ? impl_->tiers.store()->last_commit() : std::nullopt;
}

memory::Traffic ChunkManager::traffic() const { return impl_->tiers.mover().moved(); }

PerTier<std::uint64_t> ChunkManager::peak_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  PerTier<std::uint64_t> peak{};
  for (const Tier tier : kAllTiers) peak[tier] = impl_->residency.space(tier).peak_bytes();
  return peak;
}

Lease::Lease(Lease&& other) noexcept { *this = std::move(other); }

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  release();
  manager_ = std::exchange(other.manager_, nullptr);
  tier_ = other.tier_;
  uses_ = std::move(other.uses_);
  spans_ = std::move(other.spans_);
  return *this;
}

void Lease::release() {
  if (!manager_) return;
  std::exchange(manager_, nullptr)->impl_->release(uses_, tier_);
  uses_.clear();
  spans_.clear();
}

}  // namespace terrace
