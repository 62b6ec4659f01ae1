#include <terrace/parallel/run/measure_costs.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <terrace/core/base/trace.h>
#include <terrace/core/math/typical_numbers.h>

namespace terrace::running {
namespace {

constexpr std::size_t kRounds = 5;  // at least, unless they take too long
// On a device of its own an action is issued so many times before the host waits: in a step it is issued long before it runs,
// and the wait for its end overlaps with others.
constexpr int kInARow = 8;

// A layer with a report computes according to that report (it holds row numbers, for example), which is empty if an action is
// measured alone. Such an action keeps the profile's cost.
bool needs_a_report(const StepMap& map, const Action& a) {
  return is_layer_action(a.op) && map.phases().facts(a.layer).report_size > 0;
}

bool computes(const StepMap& map, const Action& a) {
  return !is_placement(a.op) && !communicates(a.op) && !is_message(a.op) && !(has_phases(a.op) && map.phases().exchanges(a));
}

// Layers that compute the same on the same shapes cost the same.
std::string signature(const StepMap& map, const Action& action) {
  const auto layer = action.layer;
  auto text = fmt::format("{} {} {} {} {} {}", static_cast<int>(action.op), action.phase, action.micro_batch != 0,
                          map.phases().facts(layer).forward_flops, map.buffers().saved_pack(layer).bytes,
                          fmt::join(map.phases().scratch_bytes(layer), " "));
  for (const auto& p : map.layout().params(layer)) text += fmt::format(" {}{}", p.shape.elements(), p.tied ? "t" : "");
  return text;
}

struct Sample {
  Action action;
  std::vector<Use> uses;
  std::vector<std::uint64_t> offsets;
  std::uint64_t bytes = 0;
  std::vector<double> seconds;
};

// The distinct actions of the program within the limits, each with places for its chunks, packed.
std::map<std::string, Sample> distinct_actions(const StepMap& map, const Program& program, const walk::ProfileCosts& costs,
                                               const MeasureLimits& limits) {
  std::map<std::string, Sample> samples;
  std::set<std::string> seen;
  for (const auto& action : program.actions) {
    if (!computes(map, action) || needs_a_report(map, action)) continue;
    const auto key = signature(map, action);
    if (!seen.insert(key).second || costs.seconds(action) > limits.action_s) continue;
    Sample s{.action = action, .uses = map.uses(action), .offsets = {}, .bytes = 0, .seconds = {}};
    for (const auto& use : s.uses) {
      s.offsets.push_back(s.bytes);
      s.bytes += map.chunks()[use.chunk].bytes;
    }
    if (s.bytes <= limits.action_bytes) samples.emplace(key, std::move(s));
  }
  return samples;
}

// Memory of one tier that the actions use in turn, so that each action evicts the previous one's data from the caches.
class Arena {
 public:
  Arena(MemoryResource& memory, std::uint64_t bytes) : slab_(memory.allocate(bytes)) {}
  [[nodiscard]] std::byte* data() const { return slab_.data(); }
  [[nodiscard]] std::uint64_t bytes() const { return slab_.bytes(); }
  std::byte* next(std::uint64_t bytes) {
    if (place_ + bytes > slab_.bytes()) place_ = 0;
    auto* const at = slab_.data() + place_;
    place_ += bytes;
    return at;
  }

 private:
  Slab slab_;
  std::uint64_t place_ = 0;
};

// The share that a step uploads of the bytes that the program's actions on the compute lane read.
double uploaded_share(const StepMap& map, const Program& program, std::uint64_t upload_bytes) {
  std::set<ChunkId> chunks;
  for (const auto& action : program.actions) {
    if (!computes(map, action) || map.places().lane_of(action) != Lane::compute) continue;
    for (const auto& use : map.uses(action))
      if (needs_content(use.access)) chunks.insert(use.chunk);
  }
  std::uint64_t bytes = 0;
  for (const auto chunk : chunks) bytes += map.chunks()[chunk].bytes;
  return bytes ? std::min(1.0, static_cast<double>(upload_bytes) / static_cast<double>(bytes)) : 0;
}

// Uploads the input of an action just before it, as a step does; if a CPU computes, the input is then not in its caches.
class Uploads {
 public:
  Uploads(Device& device, MemoryResource& host_memory, const StepMap& map, const std::map<std::string, Sample>& samples,
          double share)
      : map_(map), share_(share), stream_(device.make_stream("measure upload")) {
    std::uint64_t largest_bytes = 1;
    for (const auto& [key, s] : samples)
      for (const auto& use : s.uses) largest_bytes = std::max(largest_bytes, part_of(use));
    source_ = host_memory.allocate(round_up(largest_bytes, kPageBytes));
    math::fill_with_typical_numbers(device, {source_.data(), source_.bytes()});
  }
  void run(const Sample& s, std::byte* base) {
    if (share_ == 0) return;
    for (std::size_t i = 0; i < s.uses.size(); ++i)
      if (needs_content(s.uses[i].access)) stream_->copy(base + s.offsets[i], source_.data(), part_of(s.uses[i]));
    stream_->synchronize();
  }

 private:
  [[nodiscard]] std::uint64_t part_of(const Use& use) const {
    return static_cast<std::uint64_t>(share_ * static_cast<double>(map_.chunks()[use.chunk].bytes));
  }
  const StepMap& map_;
  double share_;
  Slab source_;
  std::unique_ptr<Stream> stream_;  // last member: its running operations use the members above
};

// The mean of the middle half: the cost of an action in the long run, without disturbances by other work of the machine.
double typical(std::vector<double> values) {
  std::ranges::sort(values);
  const auto quarter = static_cast<std::ptrdiff_t>(values.size() / 4);
  const auto first = values.begin() + quarter, last = values.end() - quarter;
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

}  // namespace

void measure_costs(walk::ProfileCosts& costs, const StepMap& map, const Program& program, Device& device,
                   const Optimizer& optimizer, const StepInput& input, const MeasureLimits& limits) {
  auto samples = distinct_actions(map, program, costs, limits);
  if (samples.empty()) return;
  std::map<Lane, std::uint64_t> arena_bytes;
  for (const auto& [key, s] : samples) {
    auto& bytes = arena_bytes[map.places().lane_of(s.action)];
    bytes = std::max({bytes, s.bytes, limits.memory_bytes});
  }
  const auto host_memory = device.host_memory();
  std::map<Lane, Arena> arenas;
  for (const auto& [lane, bytes] : arena_bytes)
    arenas.try_emplace(lane, lane == Lane::update ? *host_memory : device.memory(), round_up(bytes, kPageBytes));

  const auto host = make_cpu_device(device.pool());
  const auto stream = device.make_stream("measure"), host_stream = host->make_stream("measure");
  std::array<Stream*, kLanes> streams{};
  streams[index(Lane::compute)] = stream.get();
  streams[index(Lane::update)] = host_stream.get();
  for (const auto& [lane, arena] : arenas) math::fill_with_typical_numbers(device, {arena.data(), arena.bytes()});
  Uploads uploads(device, *host_memory, map, samples, uploaded_share(map, program, limits.upload_bytes));
  Compute compute({.device = &device, .streams = streams, .map = &map, .optimizer = &optimizer});
  compute.begin(input);
  const auto run = [&](Sample& s) {
    const auto lane = map.places().lane_of(s.action);
    std::vector<std::byte*> places(lane == Lane::compute && !device.computes_on_host() ? kInARow : 1);
    for (auto& base : places) {
      base = arenas.at(lane).next(s.bytes);
      if (lane == Lane::compute) uploads.run(s, base);
    }
    const auto begin = now_ns();
    for (auto* const base : places) compute.enqueue(s.action, s.uses, s.offsets, base);
    streams[index(lane)]->synchronize();
    s.seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9 / static_cast<double>(places.size()));
  };
  // Runs all actions in rounds, like steps.
  const auto begin = now_ns();
  const auto elapsed = [&] { return static_cast<double>(now_ns() - begin) * 1e-9; };
  for (std::size_t round = 0; round <= kRounds || elapsed() < limits.least_s; ++round) {
    for (auto& [key, s] : samples) run(s);
    if (round == 0)
      for (auto& [key, s] : samples) s.seconds.clear();  // the first run builds kernels
    else if (elapsed() > limits.total_s)
      break;
  }
  for (const auto& action : program.actions) {
    if (!computes(map, action)) continue;
    const auto key = signature(map, action);
    if (const auto at = samples.find(key); at != samples.end()) costs.set(action, typical(at->second.seconds));
  }
}

}  // namespace terrace::running
