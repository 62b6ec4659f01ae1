#include <terrace/parallel/walk.h>

#include <algorithm>

namespace terrace {

// The uses of a program are made once, for the policy and for the walk.
void Walk::begin(const Program& program) {
  uses_.clear();
  first_use_.assign(1, 0);
  std::vector<Belady::UseAt> all;
  for (std::uint64_t i = 0; i < program.actions.size(); ++i) {
    const auto& action = program.actions[i];
    const auto tier = map_.places().tier_of(action);
    for (const auto& use : map_.uses(action)) {
      uses_.push_back(use);
      all.push_back({use.chunk, tier, i});
    }
    first_use_.push_back(uses_.size());
  }
  policy_.set_program(all, program.actions.size());
}

bool Walk::retry(std::deque<Pending>& queue, Sink& sink) {
  for (; !queue.empty(); queue.pop_front()) {
    const auto [chunk, tier] = queue.front();
    moves_.clear();
    const auto not_before = now(map_.places().lane_of(tier));
    const bool there = residency_.has_content(chunk) ? residency_.prefetch(chunk, tier, not_before, moves_)
                                                     : residency_.place_ahead(chunk, tier, not_before, moves_);
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
  places_.clear();
  contents_.clear();
  Clock verdict;
  std::vector<std::uint64_t> used_at(map_.chunks().size(), program.actions.size());  // [chunk]: the action that used it last
  for (std::uint64_t i = 0; i < program.actions.size(); ++i) {
    const auto& action = program.actions[i];
    policy_.set_position(i);
    if (action.op == Op::prefetch) {
      auto& queue = residency_.has_content(ChunkId{action.chunk}) ? contents_ : places_;
      queue.push_back({ChunkId{action.chunk}, action.tier});
      continue;
    }
    if (action.op == Op::release) {  // nothing to do for any lane
      for (const auto chunk : map_.dead_after(action)) residency_.drop(chunk);
      continue;
    }
    if (action.op == Op::offload) {
      offload(action, sink);
      continue;
    }
    const auto uses = std::span(uses_).subspan(first_use_[i], first_use_[i + 1] - first_use_[i]);
    // Optimizer states before their first update, and a cache before its first position, have no content yet.
    for (auto& use : uses) {
      const bool starts_empty = is_optimizer_state(residency_.kind_of(use.chunk)) || action.op == Op::decode;
      if (use.access == Access::update && starts_empty && !residency_.has_content(use.chunk)) use.access = Access::overwrite;
    }
    const auto tier = map_.places().tier_of(action);
    const auto lane = map_.places().lane_of(action);
    // Prefetches of the chunks that this action now requests itself are no longer needed.
    for (const auto& use : uses) used_at[index(use.chunk)] = i;
    const auto taken = [&](const Pending& p) { return p.tier == tier && used_at[index(p.chunk)] == i; };
    std::erase_if(places_, taken);
    std::erase_if(contents_, taken);

    for (const auto& use : uses) release_awaited(use);
    moves_.clear();
    // Moves that make room for a message do not wait for the previous message, which another rank may send much later.
    const auto place_lane = is_message(lane) ? map_.places().lane_of(tier) : lane;
    Residency::Granted granted;
    try {
      granted = residency_.acquire(uses, tier, now(place_lane), moves_);
    } catch (const DoesNotFit& e) {
      throw DoesNotFit(e.tier, e.missing_bytes, to_text(action) + ": " + e.what());
    }
    for (const auto& move : moves_) sink.move(move);
    retry_prefetches(sink);

    if (action.op == Op::verdict) {  // squares are not chunks: so here it waits for the norms, and updates wait for it
      granted.after.merge(now(Lane::compute));
      verdict = Clock::after(lane, sequence_[index(lane)] + 1);
    }
    if (action.op == Op::update || action.op == Op::prepare) granted.after.merge(verdict);
    sink.compute(action, uses, granted, lane, ++sequence_[index(lane)]);
    if (map_.awaits(action)) {
      for (const auto& use : uses) awaited_.push_back({use, tier, now(lane)});
      continue;
    }
    residency_.release(uses, tier, now(lane));
    for (const auto chunk : map_.dead_after(action)) residency_.drop(chunk);
  }
  places_.clear();
  contents_.clear();
  while (!awaited_.empty()) release_awaited(Use{awaited_.front().use});
}

void Walk::offload(const Action& action, Sink& sink) {
  moves_.clear();
  for (const auto chunk : map_.offloaded_behind(action.layer, action.micro_batch)) residency_.offload(chunk, Clock{}, moves_);
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
    if (const ChunkId chunk{i}; map_.chunks()[chunk].kind == Kind::gradient && residency_.has_content(chunk))
      residency_.drop(chunk);
}

}  // namespace terrace
