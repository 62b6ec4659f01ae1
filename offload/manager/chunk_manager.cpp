#include <terrace/offload/manager/chunk_manager.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/memory/learned_policy.h>
#include <terrace/offload/manager/disk_tier.h>
#include <terrace/offload/manager/kept_chunks.h>
#include <terrace/offload/manager/stream_lanes.h>
#include <terrace/offload/move/clock_watch.h>
#include <terrace/offload/move/tier_stack.h>

namespace terrace {
namespace {

// With the caller's device memory as the size of the device tier, unless it is to be smaller.
OffloadOptions sized(OffloadOptions options) {
  const auto given = options.device_memory.size();
  if (given != 0 && options.device_bytes == 0) options.device_bytes = given;
  if (given == 0 || options.device_bytes <= given) return options;
  throw Error(fmt::format("device_memory has {} bytes, and device_bytes is {}\n  give at least as much memory, or set "
                          "device_bytes to 0 to use all of it",
                          given, options.device_bytes),
              ErrorKind::refused);
}

}  // namespace

// The order of members matters: `tiers`, whose mover uses the device, is destroyed before the device.
struct ChunkManager::Impl {
  explicit Impl(const OffloadOptions& options)
      : budget(offload::budget_of(sized(options))),
        own(options.device ? nullptr : std::make_unique<OwnDevice>(options.threads, options.io.log)),
        device(options.device ? *options.device : *own->device),
        tiers(device, budget.device, budget.host, options.device_memory),
        ahead_requests(options.ahead_requests),
        residency(budget, policy, offload::generations_of(options)) {
    tiers.start(offload::make_disk_tier(options, budget, this),
                {.deadline = options.io_deadline, .io = options.io, .make_io = options.make_io});
    if (!options.store.empty()) kept.emplace(*tiers.store(), residency);
    holders.resize(residency.chunks());
  }

  // A chunk and its leases: many readers, or one writer.
  struct Holders {
    std::uint32_t readers = 0;
    bool writer = false;
    bool removed = false;
    std::string label = {};  // for errors
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
  Grant grant(std::span<const Use> uses, Tier tier, const std::stop_token& stop);
  void demand_known(ChunkId chunk) const;
  void demand_unused(ChunkId chunk, const char* what) const;
  [[nodiscard]] std::string describe(ChunkId chunk) const {
    const auto& label = holders[index(chunk)].label;
    return label.empty() ? fmt::format("chunk {}", index(chunk)) : fmt::format("chunk {} ({})", index(chunk), label);
  }
  void label_in_store(ChunkId chunk) {
    if (tiers.store())
      tiers.store()->describe({chunk, ChunkKind::activation, "", residency.bytes_of(chunk), {}, holders[index(chunk)].label});
  }
  void wait_for_leases(std::unique_lock<std::mutex>& lock, const std::stop_token& stop, const std::function<bool()>& until);
  void decide(std::unique_lock<std::mutex>& lock, const std::stop_token& stop,
              const std::function<void(std::vector<Move>&)>& attempt);
  void prefetch_coming();
  void wait_for_bytes(const Clock& arrival, const AcquireOptions& options);
  void release(std::span<const Use> uses, Tier tier, const Clock& last_use, bool abandoned = false);
  void issue_decided();
  void finish_disk_moves();  // those decided so far

  const Budget budget;
  struct OwnDevice {
    OwnDevice(int threads, const Log& log) : pool(threads), device(make_host_device(pool, log)) {}
    ThreadPool pool;
    const std::unique_ptr<Device> device;
  };
  const std::unique_ptr<OwnDevice> own;
  Device& device;
  offload::TierStack tiers;
  offload::StreamLanes streams{tiers.lanes()};
  const std::uint64_t ahead_requests;

  std::mutex mutex;  // guards the members below, down to `decided`
  memory::LearnedPolicy policy;
  memory::Residency residency;
  std::optional<offload::KeptChunks> kept;                // of a store that lasts
  std::vector<Holders> holders;                           // by chunk
  std::map<std::uint64_t, std::vector<ChunkId>> removed;  // by size; their ids are given again
  std::uint64_t leases = 0, releases = 0;
  std::condition_variable_any released;
  std::deque<Move> decided;  // not issued yet, in decision order

  std::mutex issue_mutex;  // one issuer at a time; taken before `mutex`, never inside it
};

void ChunkManager::Impl::demand_known(ChunkId chunk) const {
  if (index(chunk) >= holders.size() || holders[index(chunk)].removed)
    throw std::logic_error(fmt::format("ChunkManager: there is no chunk {}", index(chunk)));
}

void ChunkManager::Impl::demand_unused(ChunkId chunk, const char* what) const {
  demand_known(chunk);
  const auto& of = holders[index(chunk)];
  if (of.writer || of.readers > 0)
    throw std::logic_error(fmt::format("ChunkManager: {} is {} while leased", describe(chunk), what));
  if (kept && kept->has(chunk))
    throw std::logic_error(fmt::format("ChunkManager: {} is {}, but it has a name and lasts", describe(chunk), what));
}

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
      fmt::format(
          "a lease of {} with {} in all on the {} tier does not fit its budget of {}: {} bytes are missing\n  lease fewer "
          "bytes at once, or give {} of {}_bytes",
          describe(uses.front().chunk), format_bytes(bytes), name_of(tier), format_bytes(budget.of(tier)),
          bytes - budget.of(tier), bytes, name_of(tier)));
}

void ChunkManager::Impl::wait_for_leases(std::unique_lock<std::mutex>& lock, const std::stop_token& stop,
                                         const std::function<bool()>& until) {
  if (!released.wait(lock, stop, until))
    throw Error("stopped by its caller while other leases held the room", ErrorKind::interrupted);
}

// Retries after each ended lease until the request fits. A failed try may have decided moves that make room; they are carried
// out too.
void ChunkManager::Impl::decide(std::unique_lock<std::mutex>& lock, const std::stop_token& stop,
                                const std::function<void(std::vector<Move>&)>& attempt) {
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
    wait_for_leases(lock, stop, [&] { return releases != seen; });
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

ChunkManager::Impl::Grant ChunkManager::Impl::grant(std::span<const Use> uses, Tier tier, const std::stop_token& stop) {
  std::unique_lock lock(mutex);
  for (const auto& use : uses) demand_known(use.chunk);
  demand_possible(uses, tier);
  policy.requested(uses, tier);
  memory::Residency::Granted granted;
  std::vector<ChunkId> claimed;
  try {
    decide(lock, stop, [&](std::vector<Move>& moves) {
      wait_for_leases(lock, stop, [&] { return free_for(uses, claimed); });
      try {
        granted = residency.acquire(uses, tier, moves);
      } catch (const memory::DoesNotFit&) {
        claim_emptied(uses, claimed);
        throw;
      }
    });
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    give_back(claimed);
    throw;
  }
  hold(uses);
  prefetch_coming();
  Grant result{{}, granted.after};
  std::byte* const base = tier == Tier::device ? tiers.device_base() : tiers.host_base();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    result.spans.emplace_back(base + granted.offsets[i], residency.bytes_of(uses[i].chunk));
  }
  return result;
}

void ChunkManager::Impl::prefetch_coming() {
  std::vector<Move> moves;
  policy.prefetch_coming(
      residency, ahead_requests, [this](ChunkId chunk) { return holders[index(chunk)].writer; }, moves);
  decided.insert(decided.end(), moves.begin(), moves.end());
}

void ChunkManager::Impl::wait_for_bytes(const Clock& arrival, const AcquireOptions& options) {
  const auto stopped = [] { return Error("stopped by its caller while the bytes were on their way", ErrorKind::interrupted); };
  const auto& lanes = tiers.lanes();
  if (options.stream) {
    const Lane its_own = streams.of(*options.stream);
    const auto* const issuing = dynamic_cast<device::IssuingStream*>(options.stream);
    if (issuing && issuing->blocks_its_caller() && !lanes.wait_until_issued(its_own, arrival, options.stop)) throw stopped();
    return lanes.stream_wait(*options.stream, its_own, arrival);
  }
  if (options.stop.stop_possible()) {
    struct Arrival {
      std::mutex mutex;
      std::condition_variable_any changed;
      bool over = false;
    };
    const auto shared = std::make_shared<Arrival>();  // the lanes may report after this call was stopped
    offload::ClockWatch::start(lanes, arrival, Lane::compute, [shared] {
      {
        const std::lock_guard lock(shared->mutex);
        shared->over = true;
      }
      shared->changed.notify_all();
    });
    std::unique_lock lock(shared->mutex);
    if (!shared->changed.wait(lock, options.stop, [&] { return shared->over; })) throw stopped();
  }
  lanes.wait(arrival);
}

// `last_use` is empty if the holder has finished with the bytes when its lease ends: later operations need not wait for it.
// Moves that still read the bytes (a flush) are in the clock of their place. `abandoned`: the lease has written nothing.
void ChunkManager::Impl::release(std::span<const Use> uses, Tier tier, const Clock& last_use, bool abandoned) {
  {
    const std::lock_guard lock(mutex);
    residency.release(uses, tier, last_use);
    for (const auto& use : uses) {
      Holders& of = holders[index(use.chunk)];
      if (writes(use.access)) {
        of.writer = false;
      } else {
        --of.readers;
      }
      if (abandoned && use.access == Access::overwrite) residency.drop(use.chunk);
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

void ChunkManager::Impl::finish_disk_moves() {
  Clock ended;
  {
    const std::lock_guard lock(mutex);
    for (const Lane lane : {Lane::read, Lane::write}) ended[lane] = residency.issued()[lane];
  }
  issue_decided();
  tiers.lanes().wait(ended);
}

ChunkManager::ChunkManager(const OffloadOptions& options) : impl_(std::make_unique<Impl>(options)) {}
ChunkManager::~ChunkManager() = default;

std::span<std::byte> Lease::bytes(std::size_t i) const {
  if (i >= spans_.size())
    throw std::logic_error(fmt::format("Lease: use {} of only {}; a moved-from lease has none", i, size()));
  return spans_[i];
}

namespace {

std::uint64_t checked_size(std::uint64_t bytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;  // does not overflow when rounded up to pages and summed
  if (bytes == 0 || bytes > kMost)
    throw std::logic_error(fmt::format("ChunkManager: a chunk of {} bytes; it must be 1 to 2^62", bytes));
  return round_up(bytes, kPageBytes);
}

}  // namespace

ChunkId ChunkManager::add(const std::string& name, std::uint64_t bytes) {
  const auto size = checked_size(bytes);
  if (!impl_->kept)
    throw Error("a chunk with a name needs a store that lasts\n  give OffloadOptions::store, or leave out the name",
                ErrorKind::refused);
  const std::lock_guard lock(impl_->mutex);
  const auto chunk = impl_->kept->add({.chunk = {},
                                       .kind = ChunkKind::parameter,
                                       .dtype = "bytes",
                                       .bytes = size,
                                       .ranges = {{.tensor = name, .first_element = 0, .elements = bytes}},
                                       .label = name});
  impl_->holders.resize(impl_->residency.chunks());
  impl_->holders[index(chunk)].label = name;
  return chunk;
}

bool ChunkManager::has_content(ChunkId chunk) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->demand_known(chunk);
  return impl_->residency.has_content(chunk);
}

ChunkId ChunkManager::add(std::uint64_t bytes, const std::string& label) {
  const auto size = checked_size(bytes);
  const std::lock_guard lock(impl_->mutex);
  ChunkId chunk;
  auto& reused = impl_->removed[size];
  if (reused.empty()) {
    // Registered as an activation, because drop() frees an activation's disk place; a parameter's place would stay reserved.
    chunk = impl_->residency.add(size, ChunkKind::activation, memory::End::low);
    impl_->holders.emplace_back();
  } else {
    chunk = reused.back();
    reused.pop_back();
  }
  auto& of = impl_->holders[index(chunk)];
  of.removed = false;
  of.label = label;
  impl_->label_in_store(chunk);
  return chunk;
}

void ChunkManager::remove(ChunkId chunk) {
  const std::lock_guard lock(impl_->mutex);
  impl_->demand_unused(chunk, "removed");
  impl_->residency.drop(chunk);
  impl_->removed[impl_->residency.bytes_of(chunk)].push_back(chunk);
  impl_->holders[index(chunk)].removed = true;
}

void ChunkManager::resize(ChunkId chunk, std::uint64_t bytes) {
  const auto size = checked_size(bytes);
  drop(chunk);
  if (impl_->tiers.store()) impl_->finish_disk_moves();  // those of the old content have its size
  const std::lock_guard lock(impl_->mutex);
  impl_->demand_unused(chunk, "resized");
  impl_->residency.resize(chunk, size);
  impl_->label_in_store(chunk);
}

void ChunkManager::prefetch(ChunkId chunk, Tier tier) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->demand_known(chunk);
    if (impl_->holders[index(chunk)].writer) return;  // a writer uses it in its present tier
    std::vector<Move> moves;
    impl_->residency.prefetch(chunk, tier, moves);
    impl_->decided.insert(impl_->decided.end(), moves.begin(), moves.end());
  }
  impl_->issue_decided();
}

Lease ChunkManager::acquire(ChunkId chunk, Tier tier, Access access, const AcquireOptions& options) {
  const Use use{chunk, access};
  return acquire(std::span(&use, 1), tier, options);
}

Lease ChunkManager::acquire(std::span<const Use> uses, Tier tier, const AcquireOptions& options) {
  Lease lease;
  lease.uses_.assign(uses.begin(), uses.end());
  auto granted = impl_->grant(uses, tier, options.stop);
  try {
    impl_->issue_decided();
    impl_->wait_for_bytes(granted.after, options);
  } catch (...) {
    impl_->release(uses, tier, granted.after, true);
    throw;
  }
  lease.manager_ = this;
  lease.tier_ = tier;
  lease.spans_ = std::move(granted.spans);
  lease.stream_ = options.stream;
  if (options.stream) lease.arrival_ = granted.after;
  return lease;
}

Acquired ChunkManager::try_acquire(std::span<const Use> uses, Tier tier, const AcquireOptions& options) noexcept {
  try {
    return {.lease = acquire(uses, tier, options)};
  } catch (const Error& error) {
    return {.error = error};
  } catch (const std::logic_error& error) {
    return {.error = Error(error.what(), ErrorKind::refused)};
  } catch (const std::exception& error) {
    return {.error = Error(error.what())};
  }
}

void ChunkManager::begin_pass(const std::string& loop) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->policy.begin_pass(loop);
    impl_->prefetch_coming();
  }
  impl_->issue_decided();
}

void ChunkManager::end_pass() {
  const std::lock_guard lock(impl_->mutex);
  impl_->policy.end_pass();
}

void ChunkManager::drop(ChunkId chunk) {
  const std::lock_guard lock(impl_->mutex);
  impl_->demand_unused(chunk, "dropped");
  impl_->residency.drop(chunk);
}

void ChunkManager::flush() {
  if (!impl_->tiers.store()) throw Error("flush needs a disk tier\n  give nvme_paths and nvme_bytes", ErrorKind::refused);
  Clock written;
  {
    std::unique_lock lock(impl_->mutex);
    for (std::uint32_t i = 0; i < impl_->holders.size(); ++i) {
      impl_->decide(lock, {}, [&](std::vector<Move>& moves) {
        impl_->wait_for_leases(lock, {}, [&] { return !impl_->holders[i].writer; });
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
  stream_ = other.stream_;
  arrival_ = other.arrival_;
  return *this;
}

void Lease::release() {
  if (stream_) return release_after(*stream_);
  end(Clock{});
}

void Lease::release_after(Stream& stream) {
  if (manager_) end(manager_->impl_->streams.end_after(stream));
}

void Lease::release(const Event& last_use) {
  if (manager_) end(manager_->impl_->streams.end_after(last_use));
}

// Moves wait for the bytes' arrival, too: the stream that was to wait for them may not have come to it.
void Lease::end(const Clock& last_use) {
  if (!manager_) return;
  Clock end = last_use;
  end.merge(arrival_);
  std::exchange(manager_, nullptr)->impl_->release(uses_, tier_, end);
  uses_.clear();
  spans_.clear();
}

}  // namespace terrace
