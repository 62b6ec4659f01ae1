#include <terrace/parallel/walk/walk.h>

#include <algorithm>

#include <terrace/core/base/units.h>

namespace terrace::walk {
namespace {

// Limits for bytes of kept fills: several times what a disk needs under way for its full rate, and 1/kShareOfFilled of a small
// tier.
constexpr std::uint64_t kMostFilledBytes = 32 * kMiB, kShareOfFilled = 4;

}  // namespace

void Walk::begin(const Program& program) {
  places_.clear();
  contents_.clear();
  verdict_ = {};
  used_at_.assign(map_.chunks().size(), program.actions.size());
  if (program_ == &program)
    policy_.set_position(0);
  else
    find_uses(program);
}

// Finds all uses once, for the policy and for the walk.
void Walk::find_uses(const Program& program) {
  program_ = &program;
  uses_.clear();
  first_use_.assign(1, 0);
  dead_.clear();
  first_dead_.assign(1, 0);
  std::vector<memory::Belady::UseAt> all;
  for (std::uint64_t i = 0; i < program.actions.size(); ++i) {
    const auto& action = program.actions[i];
    const auto tier = map_.places().tier_of(action);
    for (const auto& use : map_.uses(action)) {
      uses_.push_back(use);
      all.push_back({use.chunk, tier, i});
    }
    first_use_.push_back(uses_.size());
    if (action.op != Op::prefetch && action.op != Op::offload) {
      const auto dead = map_.dead_after(action);
      dead_.insert(dead_.end(), dead.begin(), dead.end());
    }
    first_dead_.push_back(dead_.size());
  }
  policy_.set_program(all, program.actions.size());
}

bool Walk::retry(std::deque<Pending>& queue, Sink& sink) {
  for (; !queue.empty(); queue.pop_front()) {
    const auto [chunk, tier] = queue.front();
    moves_.clear();
    const bool there =
        residency_.has_content(chunk) ? residency_.prefetch(chunk, tier, moves_) : residency_.place_ahead(chunk, tier, moves_);
    for (const auto& move : moves_) sink.move(move);
    if (!there) return false;
  }
  return true;
}

void Walk::retry_prefetches(Sink& sink) {
  if (retry(places_, sink)) retry(contents_, sink);
}

void Walk::release_awaited(const Use& use) {
  const auto at = std::ranges::find_if(awaited_, [&](const Awaited& a) { return a.use.chunk == use.chunk; });
  if (at == awaited_.end()) return;
  residency_.release({&at->use, 1}, at->tier, at->after);
  awaited_.erase(at);
}

void Walk::run(const Program& program, Sink& sink) {
  begin(program);
  for (std::uint64_t i = 0; i < program.actions.size(); ++i) {
    const auto& action = program.actions[i];
    policy_.set_position(i);
    switch (action.op) {
      case Op::prefetch: prefetch(action); break;
      case Op::release: drop_dead(i); break;  // no lane has work
      case Op::offload: offload(action, sink); break;
      default: compute(i, action, sink); break;
    }
  }
  places_.clear();
  contents_.clear();
  while (!awaited_.empty()) release_awaited(Use{awaited_.front().use});
  release_filled(0);
}

void Walk::keep_filled(std::span<const Use> uses, Tier tier, const Clock& after) {
  std::uint64_t bytes = 0;
  for (const auto& use : uses) bytes += residency_.bytes_of(use.chunk);
  filled_.push_back({{uses.begin(), uses.end()}, tier, after, bytes});
  filled_bytes_ += bytes;
  release_filled(std::min(kMostFilledBytes, residency_.space(tier).capacity_bytes() / kShareOfFilled));
}

void Walk::release_filled(std::uint64_t most_bytes) {
  for (; filled_bytes_ > most_bytes; filled_.pop_front()) {
    const auto& [uses, tier, after, bytes] = filled_.front();
    residency_.release(uses, tier, after);
    filled_bytes_ -= bytes;
  }
}

void Walk::prefetch(const Action& action) {
  auto& queue = residency_.has_content(ChunkId{action.chunk}) ? contents_ : places_;
  queue.push_back({ChunkId{action.chunk}, action.tier});
}

void Walk::compute(std::uint64_t at, const Action& action, Sink& sink) {
  if (map_.is_optional(action) && sink.leaves_out(action)) return drop_dead(at);
  const auto uses = let_empty_begin(action, std::span(uses_).subspan(first_use_[at], first_use_[at + 1] - first_use_[at]));
  const auto tier = map_.places().tier_of(action);
  const auto lane = map_.places().lane_of(action);
  forget_prefetches(at, uses, tier);
  if (action.op != Op::fill) release_filled(0);
  if (!awaited_.empty())
    for (const auto& use : uses) release_awaited(use);
  auto granted = acquire(action, uses, tier, sink);
  retry_prefetches(sink);

  if (action.op == Op::verdict) {  // squares are not chunks, so the verdict's order with norms and updates is set here
    granted.after.merge(now(Lane::compute));
    verdict_ = Clock::after(lane, sequence_[index(lane)] + 1);
  }
  if (action.op == Op::update || action.op == Op::prepare) granted.after.merge(verdict_);
  sink.compute(action, uses, granted, lane, ++sequence_[index(lane)]);
  if (map_.awaits(action)) {
    for (const auto& use : uses) awaited_.push_back({use, tier, now(lane)});
    return;
  }
  if (action.op == Op::fill)
    keep_filled(uses, tier, now(lane));
  else
    residency_.release(uses, tier, now(lane));
  drop_dead(at);
}

// Optimizer states before their first update, and a cache before its first position, have no content: they are overwritten.
std::span<const Use> Walk::let_empty_begin(const Action& action, std::span<const Use> uses) {
  const auto begins_empty = [&](const Use& use) {
    return use.access == Access::update &&
           (action.op == Op::decode || rules::is_optimizer_state(residency_.kind_of(use.chunk))) &&
           !residency_.has_content(use.chunk);
  };
  if (std::ranges::none_of(uses, begins_empty)) return uses;
  begun_.assign(uses.begin(), uses.end());
  for (auto& use : begun_)
    if (begins_empty(use)) use.access = Access::overwrite;
  return begun_;
}

// Prefetches of the chunks that an action requests itself are no longer needed.
void Walk::forget_prefetches(std::uint64_t at, std::span<const Use> uses, Tier tier) {
  if (places_.empty() && contents_.empty()) return;
  for (const auto& use : uses) used_at_[index(use.chunk)] = at;
  const auto taken = [&](const Pending& p) { return p.tier == tier && used_at_[index(p.chunk)] == at; };
  std::erase_if(places_, taken);
  std::erase_if(contents_, taken);
}

// Moves wait for nothing but their bytes and their room. A gradient, for example, leaves the device as soon as it is there,
// however late the host updates with it.
memory::Residency::Granted Walk::acquire(const Action& action, std::span<const Use> uses, Tier tier, Sink& sink) {
  moves_.clear();
  memory::Residency::Granted granted;
  try {
    granted = residency_.acquire(uses, tier, moves_);
  } catch (const memory::DoesNotFit& e) {
    if (filled_.empty()) throw memory::DoesNotFit(e.tier, e.missing_bytes, to_text(action) + ": " + e.what());
    for (const auto& move : moves_) sink.move(move);
    release_filled(0);
    return acquire(action, uses, tier, sink);
  }
  for (const auto& move : moves_) sink.move(move);
  return granted;
}

void Walk::drop_dead(std::uint64_t at) {
  for (auto dead = first_dead_[at]; dead < first_dead_[at + 1]; ++dead) residency_.drop(dead_[dead]);
}

void Walk::offload(const Action& action, Sink& sink) {
  moves_.clear();
  for (const auto chunk : map_.offloaded_behind(action.layer, action.micro_batch)) residency_.offload(chunk, moves_);
  for (const auto& move : moves_) sink.move(move);
}

void Walk::flush(Sink& sink) {
  Clock after;  // everything computed so far
  for (const auto lane : {Lane::compute, Lane::update}) after.merge(now(lane));
  for (const auto lane : kCollectiveLanes) after.merge(now(lane));
  for (std::uint32_t i = 0; i < map_.chunks().size(); ++i) {
    const ChunkId chunk{i};
    if (!map_.committed(chunk) || !residency_.has_content(chunk)) continue;
    moves_.clear();
    residency_.flush(chunk, after, moves_);
    for (const auto& move : moves_) sink.move(move);
  }
}

void Walk::drop_gradients() {
  for (std::uint32_t i = 0; i < map_.chunks().size(); ++i)
    if (const ChunkId chunk{i}; map_.chunks()[chunk].kind == ChunkKind::gradient && residency_.has_content(chunk))
      residency_.drop(chunk);
}

}  // namespace terrace::walk
