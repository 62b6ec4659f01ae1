#include <terrace/parallel/run/executor.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include <terrace/core/device/stream_range.h>
#include <terrace/core/math/stream_rooms.h>

namespace terrace::running {
namespace {

using Streams = std::array<std::unique_ptr<Stream>, kLanes>;

// Makes streams for the lanes on which the map's programs compute or communicate; the mover has those of moves.
Streams make_streams(const Executor::Parts& parts, Device* host) {
  Streams streams;
  const auto make = [&](Lane lane, Device& on) { streams[index(lane)] = on.make_stream(std::string(name_of(lane))); };
  make(Lane::compute, *parts.device);
  if (host) make(Lane::update, *host);
  if (parts.groups) make(Lane::communication, *parts.device);
  if (parts.map->parts().ranks() > 1) make(Lane::tensor, *parts.device);
  if (parts.map->data().context * parts.map->data().experts > 1) make(Lane::context, *parts.device);
  for (std::uint32_t i = 0; i < parts.map->places().messages().count(); ++i)
    make(static_cast<Lane>(index(Lane::message) + i), *parts.device);
  return streams;
}

std::array<Stream*, kLanes> borrowed(const Streams& owned) {
  std::array<Stream*, kLanes> streams{};
  std::ranges::transform(owned, streams.begin(), [](const auto& stream) { return stream.get(); });
  return streams;
}

}  // namespace

Executor::Executor(const Parts& parts)
    : parts_(parts),
      host_(parts.device->computes_on_host() ? nullptr : make_cpu_device(parts.device->pool())),
      streams_(make_streams(parts, host_.get())),
      compute_({.device = parts.device,
                .streams = borrowed(streams_),
                .groups = parts.groups,
                .map = parts.map,
                .optimizer = parts.optimizer}),
      live_(*parts.map) {
  if (parts.device->computes_on_host() == parts.map->options().separate_device)
    throw std::logic_error("Executor: the plan was made for another kind of device than " + parts.device->name());
  if (auto* const rooms = dynamic_cast<math::StreamRooms*>(&parts.device->math())) {
    std::vector<Stream*> computing;  // sums of packed gradients are computed on the lane that sends them
    for (const auto lane : {Lane::compute, Lane::communication})
      if (auto* const stream = streams_[index(lane)].get()) computing.push_back(stream);
    rooms->make_rooms(computing);
  }
}

Executor::~Executor() = default;

// Waits until all streams are idle, even if one has failed; then throws the error of the first that failed.
void Executor::synchronize() const {
  std::exception_ptr error;
  for (const auto& stream : streams_) {
    if (!stream) continue;
    try {
      stream->synchronize();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

StepResult Executor::run(const Program& program, const StepInput& input, Compute::Share share) {
  compute_.begin(input);
  live_.begin();
  result_ = {};
  static_cast<void>(overlap_.take());
  computed_ns_ = updated_ns_ = 0;
  const auto begin = now_ns();
  try {
    parts_.walk->run(program, *this);
    compute_.share_results(share);
    synchronize();
    parts_.lanes->throw_failure();  // the error of a write-back that no action waited for
  } catch (...) {
    // The remaining operations will not come, so everything that waits for them must fail. Running operations still use the
    // buffers, so wait for them.
    parts_.lanes->fail_all(std::current_exception());
    try {
      synchronize();
    } catch (...) {  // the first error is the one to report
    }
    throw;
  }
  result_.seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  if (computed_ns_ != 0 && updated_ns_ > computed_ns_)  // the device waited at the end
    result_.stall_s[std::string(name_of(Lane::update))] += static_cast<double>(updated_ns_ - computed_ns_) * 1e-9;
  result_.loss_sum = compute_.loss_sum();
  result_.losses = compute_.losses();
  result_.router = compute_.router();
  result_.gradient_norm = compute_.gradient_norm();
  result_.loss_sums = compute_.loss_sums();
  result_.gradient_norms = compute_.gradient_norms();
  result_.live = live_.peak();
  result_.communicated = overlap_.take();
  result_.group_norms = compute_.group_norms();
  return std::move(result_);
}

Event Executor::flush() {
  parts_.lanes->throw_failure();  // after a failed run, the tiers do not hold the state of any step
  parts_.walk->flush(*this);
  return parts_.mover->written();
}

void Executor::move(const Move& m) {
  result_.moved.add(m);
  parts_.mover->issue(m);
}

void Executor::compute(const Action& action, std::span<const Use> uses, const memory::Residency::Granted& granted, Lane lane,
                       std::uint64_t sequence) {
  const auto& map = *parts_.map;
  auto* base = map.places().tier_of(action) == Tier::device ? parts_.device_base : parts_.host_base;

  auto begin = std::make_shared<std::int64_t>(0);
  auto& stream = *streams_[index(lane)];
  stream.then([begin](const std::exception_ptr&) { *begin = now_ns(); });
  parts_.lanes->stream_wait(stream, lane, granted.after);
  stream.then([this, begin, action, lane, after = granted.after](const std::exception_ptr& failure) {
    if (failure) return;
    const auto ready = now_ns();
    if (lane == Lane::compute) {
      account_stall(*begin, ready, after);
      live_.start(action);
    }
    *begin = ready;
  });

  {
    const device::StreamRange range(stream, [&] { return to_text(action); });
    compute_.enqueue(action, uses, granted.offsets, base);
  }
  parts_.lanes->announce(stream, lane, sequence);

  PerTier<std::uint64_t> reserved{};
  for (const auto tier : kAllTiers) reserved[tier] = parts_.walk->reserved_bytes(tier);
  stream.then([this, begin, action, lane, sequence, reserved](const std::exception_ptr& failure) {
    parts_.lanes->end(lane, sequence, failure, [&] {
      const auto end = now_ns();
      if (lane == Lane::compute) live_.end(action);
      {
        const std::lock_guard lock(result_mutex_);
        overlap_.add(lane, static_cast<double>(*begin) * 1e-9, static_cast<double>(end) * 1e-9);
        if (lane == Lane::compute) result_.compute_seconds += static_cast<double>(end - *begin) * 1e-9, computed_ns_ = end;
        if (lane == Lane::update) updated_ns_ = end;
        if (is_collective(lane)) communicated_ns_.at(index(lane)) = end;
        if (is_message(lane)) received_ns_ = end;
      }
      if (parts_.trace) {
        parts_.trace->span({std::string(name_of(lane)), to_text(action), *begin, end});
        for (const auto tier : kAllTiers)
          parts_.trace->counter({std::string(name_of(tier)) + " bytes", end, static_cast<double>(reserved[tier])});
      }
    });
  });
}

// For a phase, the rank thread waits here until the layer's report is written.
bool Executor::leaves_out(const Action& action) {
  if (!has_phases(action.op)) return compute_.leaves_out(action);
  streams_[index(Lane::compute)]->synchronize();
  return compute_.has_nothing_to_do(action);
}

void Executor::account_stall(std::int64_t begin_ns, std::int64_t end_ns, const Clock& after) {
  constexpr std::int64_t kNoise = 20'000;  // waking a thread is not a stall
  if (end_ns - begin_ns < kNoise) return;
  // The cause is the lane waited for last; for a copy, also the lane that the copy itself had waited for.
  offload::Mover::Flight last{};
  Lane cause = Lane::compute;
  for (const Lane lane : {Lane::upload, Lane::download, Lane::read, Lane::write}) {
    offload::Mover::Flight flight;
    if (after[lane] != 0 && parts_.mover->find(lane, after[lane], flight) && flight.ended_ns > last.ended_ns) {
      last = flight;
      cause = lane;
    }
  }
  auto remaining = static_cast<double>(end_ns - begin_ns) * 1e-9;
  const std::lock_guard lock(result_mutex_);
  auto ended_ns = last.ended_ns;
  for (const auto lane : kCollectiveLanes) {
    if (after[lane] == 0 || communicated_ns_.at(index(lane)) <= ended_ns) continue;
    cause = lane;
    ended_ns = communicated_ns_.at(index(lane));
  }
  bool awaited = false;
  for (auto i = index(Lane::message); i < kLanes; ++i) awaited = awaited || after.at[i] != 0;
  if (awaited && received_ns_ > ended_ns) cause = Lane::message;
  const bool copy = cause == Lane::upload || cause == Lane::download;
  if (copy && last.waited_for != cause && last.waited_for != Lane::compute && last.started_ns > begin_ns) {
    const double inherited = std::min(remaining, static_cast<double>(last.started_ns - begin_ns) * 1e-9);
    result_.stall_s[std::string(name_of(last.waited_for))] += inherited;
    remaining -= inherited;
  }
  result_.stall_s[std::string(name_of(cause))] += remaining;
}

}  // namespace terrace::running
