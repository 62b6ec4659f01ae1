#include <terrace/offload/move/disk_lanes.h>

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace terrace::offload {
namespace {

// Enough to keep a queue of the usual depth (32) full while the first requests of the next move wait; more would only let one
// direction delay the other.
constexpr std::size_t kOpenRequests = 64;
// Only an upper bound: every event that lets a move start wakes the engine.
constexpr std::chrono::seconds kLongestSleep{1};

}  // namespace

DiskLanes::DiskLanes(const Mover::Parts& parts, MoveLog& log)
    : parts_(parts),
      log_(log),
      longest_sleep_(parts.deadline.count() > 0 ? std::min<std::chrono::nanoseconds>(kLongestSleep, parts.deadline / 4)
                                                : kLongestSleep) {
  waker_->engine = parts.engine;
  thread_ = std::thread([this] {
    run();
    const auto last_share = std::move(self_);
  });
  pthread_setname_np(thread_.native_handle(), "disk lanes");
}

DiskLanes::~DiskLanes() = default;

void DiskLanes::close(const std::shared_ptr<DiskLanes>& lanes) {
  lanes->drain();
  std::unique_lock lock(lanes->mutex_);
  lanes->stopping_ = true;
  if (!lanes->stuck_.empty()) {
    lanes->thread_.detach();
    lanes->self_ = lanes;
  }
  lock.unlock();
  lanes->waker_->wake();
  if (lanes->thread_.joinable()) lanes->thread_.join();
  const std::lock_guard no_more_wakes(lanes->waker_->mutex);
  lanes->waker_->engine = nullptr;
}

void DiskLanes::Waker::wake() {
  const std::lock_guard lock(mutex);
  if (engine) engine->wake();
}

void DiskLanes::issue(const Move& move) {
  std::list<Flight> one(1);
  auto& flight = one.front();
  flight.move = move;
  flight.times.sequence = move.sequence;
  flight.times.issued_ns = now_ns();
  flight.watch = ClockWatch::start(*parts_.lanes, move.after, lane_of(move.from, move.to), [waker = waker_] { waker->wake(); });
  {
    const std::lock_guard lock(mutex_);
    issued_.splice(issued_.end(), one);
    ++pending_;
  }
  waker_->wake();
}

void DiskLanes::drain() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [this] { return pending_ == 0; });
}

void DiskLanes::run() {
  bool unsettled = false;
  while (take_issued()) {
    const bool reads_left = start_ready(reads_), writes_left = start_ready(writes_);
    poll(reads_left || writes_left || unsettled ? std::chrono::nanoseconds{0} : longest_sleep_);
    const bool unverified = settle(reads_);
    unsettled = settle(writes_) || unverified;
  }
}

// An engine that cannot be polled any more ends both lanes. The kernel may still use its requests.
void DiskLanes::poll(std::chrono::nanoseconds wait) {
  try {
    parts_.engine->poll(wait);
  } catch (...) {
    fail_both(std::current_exception());
    std::this_thread::sleep_for(wait);  // poll() may throw again because of requests that it still has
  }
}

void DiskLanes::fail_both(const std::exception_ptr& error) {
  for (DiskLane* const lane : {&reads_, &writes_}) {
    if (!lane->failed) parts_.lanes->of(lane->lane).fail(error);
    lane->failed = true;
    for (auto& flight : lane->flights) flight.state = Flight::State::ended;
  }
}

// False if all work is done and no more will come.
bool DiskLanes::take_issued() {
  const std::lock_guard lock(mutex_);
  std::erase_if(stuck_, [](const Flight& flight) { return flight.open_requests == 0; });
  while (!issued_.empty()) {
    auto& flights = (issued_.front().move.from == Tier::disk ? reads_ : writes_).flights;
    flights.splice(flights.end(), issued_, issued_.begin());
  }
  return !stopping_ || pending_ > 0 || !stuck_.empty();
}

// Returns true if the thread must go on before it waits: moves ended without starting, or a write started and its checksum took
// time.
bool DiskLanes::start_ready(DiskLane& lane) {
  bool given_up = false;
  for (auto& flight : lane.flights) {
    if (flight.state != Flight::State::waiting) continue;
    if (lane.failed) {
      flight.state = Flight::State::ended;  // its lane has the error
      given_up = true;
      continue;
    }
    if (lane.open_requests >= kOpenRequests || !flight.watch->ready()) break;
    try {
      start(lane, flight);
      if (lane.lane == Lane::write) return true;
    } catch (...) {  // a lane that it waited for failed, or the store refused
      flight.error = std::current_exception();
      flight.state = Flight::State::ended;
      lane.failed = given_up = true;
    }
  }
  return given_up;
}

void DiskLanes::start(DiskLane& lane, Flight& flight) {
  const Move& move = flight.move;
  // If a lane failed, reached() throws its error.
  if (!parts_.lanes->reached(move.after)) throw std::logic_error("DiskLanes: a move starts before its clock");
  flight.times.started_ns = now_ns();
  flight.asleep_before_ns = asleep_ns_;
  flight.times.waited_for = flight.watch->waited_for();
  if (move.from == Tier::disk) {
    flight.offset = parts_.store->place_read(move.chunk, move.from_offset);
    submit(lane, flight, parts_.host_base + move.to_offset);
  } else {
    flight.offset = parts_.store->place_write(move.chunk, move.to_offset, move.bytes);
    std::byte* const source = parts_.host_base + move.from_offset;
    submit(lane, flight, source);
    flight.checksum = checksum_of({source, move.bytes});  // while the disk works; the source does not change
  }
}

void DiskLanes::submit(DiskLane& lane, Flight& flight, std::byte* memory) {
  const auto op = lane.lane == Lane::read ? IoRequest::Op::read : IoRequest::Op::write;
  // Reads have priority over write-backs, and the lane's oldest read, which is needed first, over its other reads.
  const auto priority = op == IoRequest::Op::write         ? IoRequest::Priority::write_back
                        : &lane.flights.front() == &flight ? IoRequest::Priority::demand
                                                           : IoRequest::Priority::prefetch;
  const auto on_end = [&lane, &flight](IoRequest& request, int error_number) {
    request.buffer = nullptr;  // the kernel no longer uses it
    if (error_number != 0 && flight.error_number == 0) {
      flight.error_number = error_number;
      lane.failed = true;
    }
    --flight.open_requests;
    --lane.open_requests;
  };
  for (const auto& piece : parts_.store->pieces(flight.offset, flight.move.bytes)) {
    for (std::uint64_t at = 0; at < piece.bytes; at += parts_.request_bytes) {
      const auto bytes = std::min(parts_.request_bytes, piece.bytes - at);
      flight.requests.push_back({op, piece.file, piece.offset + at, memory + piece.at + at, bytes, on_end, priority});
    }
  }
  std::vector<IoRequest*> batch;
  for (auto& request : flight.requests) batch.push_back(&request);
  flight.open_requests = batch.size();
  lane.open_requests += batch.size();
  flight.state = Flight::State::started;
  parts_.engine->submit(batch);
}

// All requests have ended: checks their errors and the checksum.
void DiskLanes::finish(Flight& flight) {
  flight.state = Flight::State::ended;
  flight.times.ended_ns = now_ns();
  try {
    const Move& move = flight.move;
    if (flight.error_number != 0) {
      flight.error = move_error(*parts_.store, move, flight.offset, flight.error_number);
    } else if (move.from == Tier::disk) {
      parts_.store->verify_read(move.chunk, flight.offset, {parts_.host_base + move.to_offset, move.bytes});
    } else {
      parts_.store->end_write(move.chunk, flight.offset, flight.checksum);
    }
  } catch (...) {
    flight.error = std::current_exception();
  }
}

// The time in which the process was stopped or the machine was asleep does not count against a request's deadline.
void DiskLanes::look_at_clock() {
  const auto now = now_ns(), since_ns = now - std::exchange(looked_ns_, now);
  if (since_ns > 2 * longest_sleep_.count()) asleep_ns_ += since_ns;
}

// Requests past their deadline end for their lane, although the kernel still has them.
void DiskLanes::give_up_late(DiskLane& lane) {
  if (parts_.deadline.count() == 0) return;
  look_at_clock();
  const auto now = looked_ns_;
  for (auto& flight : lane.flights) {
    if (flight.state == Flight::State::waiting) break;
    if (flight.state != Flight::State::started || flight.open_requests == 0) continue;
    const auto slept_ns = asleep_ns_ - flight.asleep_before_ns;
    if (now - flight.times.started_ns - slept_ns < parts_.deadline.count()) continue;
    flight.state = Flight::State::ended;
    try {
      flight.error = stuck_error(*parts_.store, flight.move, flight.offset, flight.requests, parts_.deadline);
    } catch (...) {  // no memory for the message
      flight.error = std::current_exception();
    }
  }
}

bool DiskLanes::settle(DiskLane& lane) {
  give_up_late(lane);
  bool verified = false, unsettled = false;
  for (auto& flight : lane.flights) {
    if (flight.state == Flight::State::waiting) break;  // thousands may wait behind it
    const bool whole = flight.state == Flight::State::started && flight.open_requests == 0;
    if (whole && verified) {
      unsettled = true;
    } else if (whole) {
      finish(flight);
      verified = lane.lane == Lane::read;
    }
    if (flight.error) lane.failed = true;
  }
  std::size_t ended = 0;
  std::list<Flight> gone, stuck;
  for (; !lane.flights.empty() && lane.flights.front().state == Flight::State::ended; ++ended) {
    auto& flight = lane.flights.front();
    // A move that never started advances nothing: its lane has failed.
    if (flight.error || flight.times.ended_ns != 0)
      parts_.lanes->end(lane.lane, flight.move.sequence, flight.error, [&] { log_.add(flight.move, flight.times); });
    auto& to = flight.open_requests > 0 ? stuck : gone;
    to.splice(to.end(), lane.flights, lane.flights.begin());
  }
  if (ended == 0) return unsettled;
  const std::lock_guard lock(mutex_);
  stuck_.splice(stuck_.end(), stuck);
  pending_ -= ended;
  if (pending_ == 0) drained_.notify_all();
  return unsettled;
}

}  // namespace terrace::offload
