#include <terrace/parallel/walk/simulator.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace terrace::walk {

double ProfileCosts::seconds(const Action& a) const {
  if (const auto at = measured_.find(key(a)); at != measured_.end()) return at->second;
  const auto& map = map_;
  const auto bytes_used = [&](bool of_parameters_only = false) {
    std::uint64_t bytes = 0;
    for (const auto& use : map.uses(a))
      if (const auto& chunk = map.chunks()[use.chunk]; !of_parameters_only || mapping::is_of_parameters(chunk.role))
        bytes += chunk.bytes * (use.access == Access::update ? 2 : 1);
    return static_cast<double>(bytes);
  };
  if (has_phases(a.op) && map.phases().exchanges(a)) return seconds_of(mapping::exchanges_of(map, a));
  const bool on_device = profile_.separate_device() && map.places().tier_of(a) == Tier::device;
  const double stream = on_device ? profile_.device_stream : profile_.memory_stream;
  switch (a.op) {
    case Op::update:
    case Op::early:
    case Op::restore:
    case Op::prepare:
    case Op::fill:
    case Op::visit:
    case Op::keep:
    case Op::norm: return bytes_used() / stream;
    case Op::send:
    case Op::receive:
      return mapping::seconds_of_message(links(), map.mesh().stride(Axis::pp), map.pipeline().rank, a.peer,
                                         static_cast<std::uint64_t>(bytes_used()));
    case Op::gather:
    case Op::exchange:
    case Op::reduce:
    case Op::verdict:
    case Op::unify: return seconds_of(mapping::exchanges_of(map, a));
    case Op::release:
    case Op::prefetch: return 0;
    default: break;
  }
  const auto dtype = map.model().dtype;
  const double rate = dtype == DType::bf16   ? profile_.matmul_bf16
                      : dtype == DType::fp64 ? profile_.matmul_fp64
                                             : profile_.matmul_fp32;
  const auto touched = has_phases(a.op) ? map.phases().phase(a).touched_bytes : std::nullopt;
  const double bytes = (touched ? bytes_used(true) + *touched : bytes_used()) + map.phases().float8_bytes(a);
  const double narrow = map.phases().float8_flops(a);
  return (map.phases().flops(a) - narrow) / rate + narrow / profile_.float8_rate() + bytes / stream;
}

// Without measured links, ranks exchange through one machine's memory, even if `ranks-per-machine` makes them count as several
// machines.
machine::Links ProfileCosts::links() const {
  auto links = profile_.links;
  if (links.within == 0) links.within = profile_.memory_copy;
  if (links.between == 0) links.between = links.within * links.ranks_per_node;
  return links;
}

double ProfileCosts::seconds_of(const std::vector<mapping::Exchange>& exchanges) const {
  double seconds = 0;
  for (const auto& exchange : exchanges) seconds += terrace::mapping::seconds_of(links(), exchange);
  return seconds;
}

void SimulatedTimes::add(const SimulatedTimes& other) {
  seconds += other.seconds;
  compute_seconds += other.compute_seconds;
  for (const auto& [cause, s] : other.stall_s) stall_s[cause] += s;
  begin_s += other.begin_s;
  end_s += other.end_s;
  for (std::size_t i = 0; i < kLanes; ++i) busy_s[i] += other.busy_s[i];
  communicated.seconds += other.communicated.seconds;
  communicated.hidden_s += other.communicated.hidden_s;
}

void SimulatedTimes::divide(double by) {
  seconds /= by;
  compute_seconds /= by;
  for (auto& [cause, s] : stall_s) s /= by;
  begin_s /= by;
  end_s /= by;
  for (auto& s : busy_s) s /= by;
  communicated.seconds /= by;
  communicated.hidden_s /= by;
}

const Simulator::Done& Simulator::done(Lane lane, std::uint64_t sequence) const { return done_[index(lane)].at(sequence - 1); }

double Simulator::when(const Clock& clock, Lane* last) const {
  double latest = 0;
  for (std::size_t i = 0; i < kLanes; ++i) {
    if (clock.at[i] == 0) continue;
    const auto lane = static_cast<Lane>(i);
    const bool disk = lane == Lane::read || lane == Lane::write;
    const double end = done(lane, clock.at[i]).end + (disk ? profile_.disk_latency_s : 0);
    if (end > latest) {
      latest = end;
      if (last) *last = lane;
    }
  }
  return latest;
}

void Simulator::move(const Move& m) {
  const auto lane = lane_of(m.from, m.to);
  const auto bytes = static_cast<double>(m.bytes);
  auto& queue = done_[index(lane)];
  Done d;
  d.waited_for = lane;
  const double free_at = queue.empty() ? 0 : queue.back().end;
  Lane waited = lane;
  const double ready = when(m.after, &waited);
  if (ready > free_at) d.waited_for = waited;
  d.start = std::max({ready, free_at, not_before_});
  d.end = ends(lane, d.start, bytes / bytes_per_second(lane));
  times_.busy_s[index(lane)] += d.end - d.start;
  queue.push_back(d);
  if (trace_)
    trace_->span({std::string(name_of(lane)), label_ ? label_(m.chunk) : "", static_cast<std::int64_t>(d.start * 1e9),
                  static_cast<std::int64_t>(d.end * 1e9)});
}

double Simulator::bytes_per_second(Lane lane) const {
  switch (lane) {
    case Lane::read: return profile_.disk_read;
    case Lane::write: return profile_.disk_write;
    case Lane::upload: return profile_.separate_device() ? profile_.upload : profile_.memory_copy;
    default: return profile_.separate_device() ? profile_.download : profile_.memory_copy;
  }
}

double Simulator::share(Lane self, Lane other) const {
  const auto disk = [](Lane lane) { return lane == Lane::read || lane == Lane::write; };
  if (self == Lane::compute && profile_.separate_device()) return 1;
  if (self == Lane::compute || self == Lane::update)
    return disk(other) ? profile_.compute_beside_disk : profile_.compute_beside_copy;
  if (!disk(self) || !disk(other)) return 1;
  // If a read and a write of one byte each run together, the later one is slowed down so that both end at the measured time.
  const double read = 1 / profile_.disk_read, write = 1 / profile_.disk_write, both = 2 / profile_.disk_both;
  return std::clamp((read + write - both) / std::min(read, write), 0.0, 1.0);
}

// Operations that could run at the same time were decided earlier, so their times are known.
double Simulator::ends(Lane self, double start, double seconds) {
  double now = start, left = seconds;
  while (left > 0) {
    double speed = 1, until = std::numeric_limits<double>::infinity();
    for (const auto lane : {Lane::upload, Lane::download, Lane::read, Lane::write}) {
      if (lane == self) continue;
      const auto& queue = done_[index(lane)];
      auto& next = passed_[index(self)][index(lane)];
      while (next < queue.size() && queue[next].end <= now) ++next;
      if (next == queue.size()) continue;
      if (queue[next].start > now) {
        until = std::min(until, queue[next].start);
      } else {
        until = std::min(until, queue[next].end);
        speed *= share(self, lane);
      }
    }
    const double span = std::min(speed > 0 ? left / speed : until - now, until - now);
    now += span;
    left -= span * speed;
    if (span <= 0) break;  // the rest is below the clock's resolution
  }
  return now;
}

void Simulator::compute(const Action& action, std::span<const Use>, const memory::Residency::Granted& granted, Lane lane,
                        std::uint64_t) {
  auto& queue = done_[index(lane)];
  Done d;
  const double free_at = std::max(step_begin_, queue.empty() ? 0 : queue.back().end);
  Lane waited = lane;
  const double ready = when(granted.after, &waited);
  d.start = std::max(ready, free_at);
  const double seconds = cost_of(action);
  d.end = ends(lane, d.start, seconds);
  d.waited_for = waited;
  // Work on the host counts only if the device waits for it.
  if (lane == Lane::compute) times_.compute_seconds += seconds;
  if (lane == Lane::compute && !std::exchange(computes_, true)) times_.begin_s = d.start - free_at;
  if (lane == Lane::compute && d.start > free_at && waited != lane) {
    // If an upload could not start at once, that part of the wait is caused by the lane for which the upload waited.
    double stall = d.start - free_at;
    if (waited == Lane::upload || waited == Lane::download) {
      const auto& flight = done(waited, granted.after[waited]);
      if (flight.waited_for != waited && flight.waited_for != Lane::compute && flight.start > free_at) {
        times_.stall_s[std::string(name_of(flight.waited_for))] += flight.start - free_at;
        stall -= flight.start - free_at;
      }
    }
    times_.stall_s[std::string(name_of(waited))] += stall;
  }
  times_.busy_s[index(lane)] += d.end - d.start;
  overlap_.add(lane, d.start, d.end);
  queue.push_back(d);
  if (trace_)
    trace_->span({std::string(name_of(lane)), to_text(action), static_cast<std::int64_t>(d.start * 1e9),
                  static_cast<std::int64_t>(d.end * 1e9)});
}

// The hash starts from the numbers that differ most, and all others are mixed into it.
std::size_t Simulator::HashOfAction::operator()(const Action& a) const {
  std::uint64_t hash = (std::uint64_t{a.layer} << 32 | a.micro_batch) * 0x9E3779B97F4A7C15U;
  for (const std::uint64_t more : {static_cast<std::uint64_t>(a.op) << 32 | a.phase, std::uint64_t{a.copy} << 32 | a.chunk,
                                   std::uint64_t{a.update} << 32 | a.peer, static_cast<std::uint64_t>(a.payload)})
    hash = ((hash ^ hash >> 29) + more) * 0x9E3779B97F4A7C15U;
  return static_cast<std::size_t>(hash ^ hash >> 32);
}

double Simulator::cost_of(const Action& action) {
  const auto [known, is_new] = known_costs_.try_emplace(action, 0.0);
  if (is_new) known->second = costs_.seconds(action);
  return known->second;
}

double Simulator::computed() const {
  double end = step_begin_;
  for (const auto lane : {Lane::compute, Lane::update})
    if (const auto& queue = done_[index(lane)]; !queue.empty()) end = std::max(end, queue.back().end);
  return end;
}

bool Simulator::knows(const Clock& clock) const {
  for (std::size_t i = 0; i < kLanes; ++i)
    if (clock.at[i] > done_[i].size()) return false;
  return true;
}

double Simulator::ready(Lane lane, const Clock& after) const {
  const auto& queue = done_[index(lane)];
  return std::max({step_begin_, queue.empty() ? 0 : queue.back().end, when(after, nullptr)});
}

void Simulator::pass(const Action& action, Lane lane, double start, double end) {
  done_[index(lane)].push_back({start, end, lane});
  times_.busy_s[index(lane)] += end - start;
  if (trace_)
    trace_->span({std::string(name_of(lane)), to_text(action), static_cast<std::int64_t>(start * 1e9),
                  static_cast<std::int64_t>(end * 1e9)});
}

SimulatedTimes Simulator::finish_step(double not_before) {
  not_before_ = not_before;
  // At the end the device waits for the updates after its last action.
  const auto& device = done_[index(Lane::compute)];
  const double idle = computed() - std::max(step_begin_, device.empty() ? 0 : device.back().end);
  if (idle > 0) times_.stall_s[std::string(name_of(Lane::update))] += times_.end_s = idle;
  const double end = std::max(computed(), not_before);
  auto out = std::move(times_);
  times_ = {};
  computes_ = false;
  out.communicated = overlap_.take();
  out.seconds = end - step_begin_;
  step_begin_ = end;
  return out;
}

double Simulator::finish_writes() {
  const auto& writes = done_[index(Lane::write)];
  const double end = std::max(computed(), writes.empty() ? 0 : writes.back().end);
  times_ = {};
  computes_ = false;
  static_cast<void>(overlap_.take());
  return end - std::exchange(step_begin_, end);
}

}  // namespace terrace::walk
