#include <terrace/parallel/map/program_bytes.h>

#include <set>

namespace terrace::mapping {

std::uint64_t largest_use(const StepMap& map, const Program& program, Tier tier, Action* which) {
  std::uint64_t largest = 0, awaited = 0;
  std::set<ChunkId> awaiting;
  for (const auto& action : program.actions) {
    if (action.op == Op::prefetch || map.places().tier_of(action) != tier) continue;
    std::uint64_t bytes = 0;
    for (const auto& use : map.uses(action)) {
      bytes += map.chunks()[use.chunk].bytes;
      if (awaiting.erase(use.chunk) != 0) awaited -= map.chunks()[use.chunk].bytes;
    }
    if (bytes + awaited > largest) {
      largest = bytes + awaited;
      if (which) *which = action;
    }
    if (!map.awaits(action)) continue;
    for (const auto chunk : map.carried_by(action)) {
      awaiting.insert(chunk);
      awaited += map.chunks()[chunk].bytes;
    }
  }
  return largest;
}

memory::Traffic offloaded_by(const StepMap& map, const Program& step) {
  memory::Traffic moved;
  std::set<ChunkId> away, copied;  // chunks off the device; chunks with a valid copy on the host
  for (const auto& a : step.actions) {
    if (a.op == Op::offload)
      for (const auto chunk : map.offloaded_behind(a.layer, a.micro_batch)) {
        away.insert(chunk);
        if (copied.insert(chunk).second) moved.download += map.chunks()[chunk].bytes;
      }
    if (a.op == Op::prefetch || map.places().tier_of(a) != Tier::device || copied.empty()) continue;
    for (const auto& use : map.uses(a)) {
      if (away.erase(use.chunk) != 0) moved.upload += map.chunks()[use.chunk].bytes;
      if (writes(use.access)) copied.erase(use.chunk);
    }
    for (const auto chunk : map.dead_after(a)) away.erase(chunk), copied.erase(chunk);
  }
  return moved;
}

bool moves_state(const StepMap& map, const Program& step, const memory::Traffic& moved) {
  const auto offloaded = offloaded_by(map, step);
  return moved.upload > offloaded.upload || moved.download > offloaded.download || moved.read + moved.write != 0;
}

}  // namespace terrace::mapping
