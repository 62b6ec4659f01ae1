#include <terrace/offload/manager/chunk_manager.h>

#include <unistd.h>

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
#include <terrace/offload/move/tier_stack.h>

namespace terrace {
namespace {

std::uint64_t whole_pages(std::uint64_t bytes) { return bytes / kPageBytes * kPageBytes; }

Budget budget_of(const OffloadOptions& options) {
  const bool disk = !options.nvme_paths.empty();
  if (disk && options.nvme_bytes < kPageBytes)
    throw Error("nvme_paths are given, but nvme_bytes is 0\n  set nvme_bytes to the size of the disk tier", ErrorKind::refused);
  if (!disk && options.nvme_bytes != 0)
    throw Error("nvme_bytes is given, but nvme_paths is empty\n  give a folder on a disk, or leave nvme_bytes at 0",
                ErrorKind::refused);
  if (options.device_bytes == kUnlimited || options.host_bytes == kUnlimited || options.nvme_bytes == kUnlimited) {
    throw Error(
        "a chunk manager allocates its tiers at once, so they cannot be unlimited\n  give a size for device_bytes, host_bytes "
        "and nvme_bytes",
        ErrorKind::refused);
  }
  return {whole_pages(options.device_bytes), whole_pages(options.host_bytes), disk ? whole_pages(options.nvme_bytes) : 0};
}

}  // namespace

// The order of members matters: `tiers`, whose mover uses the device, is destroyed before the device.
struct ChunkManager::Impl {
  explicit Impl(const OffloadOptions& options)
      : budget(budget_of(options)),
        own(options.device ? nullptr : std::make_unique<OwnDevice>(options.threads, options.io.log)),
        device(options.device ? *options.device : *own->device),
        tiers(device, budget.device, budget.host) {
    std::unique_ptr<ChunkStore> store;
    if (budget.disk > 0) {
      ChunkStore::Options store_options;
      store_options.paths = options.nvme_paths;
      store_options.name = fmt::format("offload-{}-{}", ::getpid(), static_cast<const void*>(this));
      store_options.capacity_bytes = budget.disk;
      store_options.durable = false;
      store_options.generations = 1;
      store_options.temporary = true;
      store_options.io = options.io;
      store = ChunkStore::create(store_options);
    }
    tiers.start(std::move(store), {.io = options.io});
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
  memory::Residency residency{budget, policy};
  std::vector<Holders> holders;  // by chunk
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

ChunkId ChunkManager::add(std::uint64_t bytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;  // does not overflow when rounded up to pages and summed
  if (bytes == 0 || bytes > kMost)
    throw std::logic_error(fmt::format("ChunkManager: a chunk of {} bytes; it must be 1 to 2^62", bytes));
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
