#include <terrace/optimizers/state/state_tiers.h>

#include <exception>
#include <utility>

#include <terrace/offload/manager/disk_tier.h>

namespace terrace::rules {
namespace {

// No move of a sweep is urgent, so the drive gets as much as makes it fast: with the window of training, a drive that reads and
// writes at the same time did one of both at a time.
constexpr std::uint64_t kWindowBytes = 64 * kMiB;

}  // namespace

StateTiers::StateTiers(const OffloadOptions& options, Device& device)
    : device_(device),
      budget_(offload::budget_of(options)),
      tiers_(device_, budget_.device, budget_.host),
      residency_(budget_, policy_, offload::generations_of(options)) {
  tiers_.start(offload::make_disk_tier(options, budget_, this),
               {.deadline = options.io_deadline, .io = options.io, .window_bytes = kWindowBytes, .make_io = options.make_io});
  if (!options.store.empty()) kept_.emplace(*tiers_.store(), residency_);
}

// The mover's destructor waits for all moves, and those wait for the operations.
StateTiers::~StateTiers() {
  try {
    wait();
  } catch (...) {  // a failed operation has ended, too
  }
}

ChunkId StateTiers::add(ChunkDescription description) {
  if (kept_) return kept_->add(std::move(description));
  const auto chunk = residency_.add(description.bytes, description.kind, memory::End::low);
  description.chunk = chunk;
  if (tiers_.store()) tiers_.store()->describe(std::move(description));
  return chunk;
}

void StateTiers::issue(const std::vector<Move>& moves) {
  for (const auto& move : moves) tiers_.mover().issue(move);
}

void StateTiers::run(Stream& stream, std::span<const Use> uses, Tier tier, const Enqueue& enqueue) {
  std::vector<Move> moves;
  memory::Residency::Granted granted;
  try {
    granted = residency_.acquire(uses, tier, moves);
  } catch (...) {
    issue(moves);  // they were decided, and later decisions build on them
    throw;
  }
  issue(moves);
  const auto operation = ++operations_;
  residency_.release(uses, tier, Clock::after(Lane::compute, operation));

  auto* const base = tier == Tier::device ? tiers_.device_base() : tiers_.host_base();
  std::vector<std::byte*> places;
  for (const auto offset : granted.offsets) places.push_back(base + offset);
  submit(stream, operation, [&] {
    // Operations end in their order, also if they are on several streams.
    if (std::exchange(last_stream_, &stream) != &stream) stream.wait(tiers_.lanes().event(Lane::compute, operation - 1));
    tiers_.lanes().stream_wait(stream, Lane::compute, granted.after);
    enqueue(places);
  });
}

// Moves wait for the operation's end, so it ends even if it could not be enqueued.
void StateTiers::submit(Stream& stream, std::uint64_t operation, const std::function<void()>& enqueue) {
  try {
    enqueue();
  } catch (...) {
    tiers_.lanes().of(Lane::compute).fail(std::current_exception());
    throw;
  }
  tiers_.lanes().announce(stream, Lane::compute, operation);
  stream.then([&lanes = tiers_.lanes(), operation](const std::exception_ptr& failure) {
    lanes.end(Lane::compute, operation, failure, [] {});
  });
}

void StateTiers::wait() const {
  if (operations_ > 0) tiers_.lanes().of(Lane::compute).wait(operations_);
}

void StateTiers::finish_writes() const { tiers_.lanes().wait(residency_.issued()); }

void StateTiers::commit(std::uint64_t step, const std::string& payload) {
  std::vector<Move> moves;
  try {
    kept_->flush(moves);
  } catch (...) {
    issue(moves);
    throw;
  }
  issue(moves);
  wait();
  finish_writes();
  kept_->commit(step, payload);
}

std::optional<Commit> StateTiers::last_commit() const { return kept_ ? tiers_.store()->last_commit() : std::nullopt; }
std::vector<std::string> StateTiers::left_out() const { return kept_ ? kept_->left_out() : std::vector<std::string>{}; }
std::string StateTiers::folder() const { return kept_ ? tiers_.store()->path_of(0).parent_path().string() : ""; }

PerTier<std::uint64_t> StateTiers::peak_bytes() const {
  PerTier<std::uint64_t> peak{};
  for (const Tier tier : kAllTiers) peak[tier] = residency_.space(tier).peak_bytes();
  return peak;
}

}  // namespace terrace::rules
