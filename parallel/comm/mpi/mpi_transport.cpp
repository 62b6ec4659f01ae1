#include <terrace/parallel/comm/mpi/mpi_transport.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/parallel/comm/rank_failed.h>
#include <terrace/parallel/comm/wait_clock.h>

namespace terrace::comm {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLargestMessage = kGiB;     // MPI counts in int
constexpr std::size_t kDirectBytes = 256 * kKiB;  // from here on a message costs less than the window's second copy
constexpr auto kLook = 5ms;                       // how often a waiting thread checks whether the others still run
constexpr auto kLastWord = 2s;                    // how long the last message of a rank that has left may take
constexpr int kSpins = 1000;                      // tests before the thread sleeps in between

void demand(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw Error(fmt::format("{}: {}", what, text.data()));
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  demand(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  return copy;
}

class Entered {
 public:
  Entered(MachineWindow& window, std::uint64_t number, const Call& call) : window_(window), number_(number) {
    window_.begin(number, call);
  }
  ~Entered() { window_.end(number_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  MachineWindow& window_;
  const std::uint64_t number_;
};

}  // namespace

MpiTransport::MpiTransport(MPI_Comm ranks, std::string name, const CommunicatorOptions& options,
                           std::shared_ptr<MpiPulse> pulse)
    : name_(std::move(name)), options_(options), pulse_(std::move(pulse)) {
  MPI_Comm_rank(ranks, &rank_);
  MPI_Comm_size(ranks, &size_);
  const auto limited = watchdog("the start");
  lanes_ = duplicate(ranks);
  inner_ = duplicate(ranks);
  demand_same_division();
  if (options_.ranks_per_machine > 0) {
    int world = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    demand(MPI_Comm_split(inner_, world / options_.ranks_per_machine, rank_, &machine_), "MPI_Comm_split");
    demand_shared_memory();
  } else {
    demand(MPI_Comm_split_type(inner_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine_), "MPI_Comm_split_type");
  }
  int local = 0;
  MPI_Comm_size(machine_, &local);
  neighbours_.resize(static_cast<std::size_t>(local));
  demand(MPI_Allgather(&rank_, 1, MPI_INT, neighbours_.data(), 1, MPI_INT, machine_), "MPI_Allgather");
  std::vector<int> machine_of_rank(static_cast<std::size_t>(size_));  // a machine is named by its first rank
  demand(MPI_Allgather(&neighbours_.front(), 1, MPI_INT, machine_of_rank.data(), 1, MPI_INT, inner_), "MPI_Allgather");
  machines_ = Machines::of(machine_of_rank);
  window_ = std::make_unique<MachineWindow>(machine_, name_, neighbours_, options_.time_limit);
  if (!pulse_ && !one_machine()) pulse_ = std::make_shared<MpiPulse>(ranks);
  if (pulse_) of_world_ = pulse_->ranks_of(ranks);
}

Watchdog MpiTransport::watchdog(const std::string& where) const {
  return {limit_of_mpi(options_.time_limit), [this, where] {
            end_process(describe_wait_in_mpi(fmt::format("{} of communicator {}", where, name_), options_.time_limit));
          }};
}

// Checked before the first call that depends on it: ranks with different divisions would wait for each other there.
void MpiTransport::demand_same_division() const {
  std::vector<int> all(static_cast<std::size_t>(size_));
  demand(MPI_Allgather(&options_.ranks_per_machine, 1, MPI_INT, all.data(), 1, MPI_INT, inner_), "MPI_Allgather");
  const auto other = std::ranges::find_if(all, [&](int each) { return each != all.front(); });
  if (other == all.end()) return;
  const auto rank = other - all.begin();
  throw Error(
      fmt::format("the settings of rank {0} differ from those of rank 0:\n  ranks-per-machine: {1} on rank 0, {2} on rank "
                  "{0}\n  start all ranks with the same settings",
                  rank, all.front(), *other),
      ErrorKind::refused);
}

// Ranks that count as one machine share memory.
void MpiTransport::demand_shared_memory() const {
  MPI_Comm shared = MPI_COMM_NULL;
  demand(MPI_Comm_split_type(machine_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &shared), "MPI_Comm_split_type");
  int all = 0, here = 0, least = 0;
  MPI_Comm_size(machine_, &all);
  MPI_Comm_size(shared, &here);
  MPI_Comm_free(&shared);
  const int fits = here == all ? 1 : 0;
  demand(MPI_Allreduce(&fits, &least, 1, MPI_INT, MPI_MIN, inner_), "MPI_Allreduce");
  if (least == 0)
    throw Error(fmt::format("ranks that count as one machine ({} neighbours) are on several\n  give at most as many as "
                            "neighbours on every machine, or leave it to the launcher",
                            options_.ranks_per_machine),
                ErrorKind::refused);
}

void MpiTransport::run(const Call& call, std::uint64_t number) {
  const Entered entered(*window_, number, call);
  if (window_->failed()) throw RankFailed(window_->failure());
  dispatch(call, number);
}

// Both ends of a message exchange its size: a rank that sends another size than its peer receives must stop.
void MpiTransport::meet(const Call& call, std::uint64_t number) {
  if (is_collective(call.operation)) return one_machine() ? window_->match(call) : far_match(call, number);
  const std::uint64_t mine = call.payload_bytes();
  std::uint64_t theirs = mine;
  if (call.operation == Operation::send) {
    return exchange(lanes_, call.lane, {{call.peer, std::as_bytes(std::span(&mine, 1))}}, {}, number);
  }
  exchange(lanes_, call.lane, {}, {{call.peer, std::as_writable_bytes(std::span(&theirs, 1))}}, number);
  if (theirs != mine) throw Error(fmt::format("rank {} sent {} bytes and rank {} receives {}", call.peer, theirs, rank_, mine));
}

void MpiTransport::dispatch(const Call& call, std::uint64_t number) {
  if (call.on_device) return meet(call, number);
  switch (call.operation) {
    case Operation::send: return exchange(lanes_, call.lane, {{call.peer, call.from.front()}}, {}, number);
    case Operation::receive: return exchange(lanes_, call.lane, {}, {{call.peer, call.to.front()}}, number);
    case Operation::all_to_all: {
      if (one_machine()) {
        window_->match(call);
      } else {
        far_match(call, number);
      }
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      for (int r = 0; r < size_; ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (!call.from[i].empty()) out.push_back({r, call.from[i]});
        if (!call.to[i].empty()) in.push_back({r, call.to[i]});
      }
      return exchange(inner_, kDataTag, out, in, number);
    }
    case Operation::all_gather:
      // One copy, by the kernel from process to process, instead of two through the window.
      if (!one_machine() || call.from.front().size() < kDirectBytes) break;
      window_->match(call);
      return gather_directly(call, number);
    default: break;
  }
  if (one_machine()) return window_->run(call);
  far(call, number);
}

std::shared_ptr<Transport> MpiTransport::split(int color, int key, const std::string& name, std::uint64_t number) {
  const Call call{.operation = Operation::split};
  const Entered entered(*window_, number, call);
  dispatch({.operation = Operation::barrier}, number);  // MPI's own calls wait without a limit: all must have come
  MPI_Comm part = MPI_COMM_NULL;
  const auto limited = watchdog("a split");
  demand(MPI_Comm_split(inner_, color < 0 ? MPI_UNDEFINED : color, key, &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return nullptr;
  auto transport = std::make_shared<MpiTransport>(part, name, options_, pulse_);
  MPI_Comm_free(&part);
  return transport;
}

// ---- messages ----------------------------------------------------------------------------------------------------------

void MpiTransport::exchange(MPI_Comm comm, int tag, const std::vector<Outgoing>& out, const std::vector<Incoming>& in,
                            std::uint64_t number, std::chrono::milliseconds grace) {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  const auto post = [&](std::size_t bytes, int peer, auto&& one) {
    for (std::size_t at = 0; at == 0 || at < bytes; at += kLargestMessage) {
      peers.push_back(peer);
      demand(one(at, static_cast<int>(std::min(kLargestMessage, bytes - at)), &requests.emplace_back()), "MPI_I(s)send/recv");
    }
  };
  std::vector<int> expected;  // bytes, of the receives
  for (const auto& message : in) {
    post(message.bytes.size(), message.from, [&](std::size_t at, int bytes, MPI_Request* request) {
      expected.push_back(bytes);
      return MPI_Irecv(message.bytes.data() + at, bytes, MPI_BYTE, message.from, tag, comm, request);
    });
  }
  for (const auto& message : out) {
    post(message.bytes.size(), message.to, [&](std::size_t at, int bytes, MPI_Request* request) {
      return MPI_Issend(message.bytes.data() + at, bytes, MPI_BYTE, message.to, tag, comm, request);
    });
  }
  WaitClock wait;
  auto looked = Clock::now();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    MPI_Status status;
    int done = 0;
    for (int spin = 0;; ++spin) {
      const int result = MPI_Test(&requests[i], &done, &status);
      if (result != MPI_SUCCESS) {
        requests[i] = MPI_REQUEST_NULL;
        cancel(requests);
        demand(result, fmt::format("message with rank {}, of another size than expected?", peers[i]).c_str());
      }
      if (done) break;
      spin < kSpins ? static_cast<void>(sched_yield()) : std::this_thread::sleep_for(50us);
      if (Clock::now() - looked < kLook) continue;
      looked = Clock::now();
      const bool left = has_left(peers[i]);
      // It has finished its part of the call; on busy cores, MPI's last message from it may come late.
      for (const auto until = Clock::now() + kLastWord; left && !done && Clock::now() < until; std::this_thread::sleep_for(1ms))
        MPI_Test(&requests[i], &done, &status);
      if (done) break;
      try {
        check(peers[i], left, number, wait.since() + grace);
      } catch (const Error&) {
        cancel(requests);
        throw;
      }
    }
    if (i >= expected.size()) continue;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes == expected[i]) continue;
    cancel(requests);
    throw Error(fmt::format("rank {} sent {} bytes and rank {} receives {}", peers[i], bytes, rank_, expected[i]));
  }
}

// Ends receives at once; sends cannot be cancelled.
void MpiTransport::cancel(std::vector<MPI_Request>& requests) {
  for (auto& request : requests) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
}

// ---- failures ----------------------------------------------------------------------------------------------------------

void MpiTransport::check(int peer, bool left, std::uint64_t number, Clock::time_point since) {
  const bool far = std::ranges::find(neighbours_, peer) == neighbours_.end();
  if (far && !left && window_->is_patient(number)) {
    const auto limit = limit_of_mpi(options_.time_limit);
    if (pulse_->silence_of(of_world_[static_cast<std::size_t>(peer)]) > limit)
      window_->fail(
          fmt::format("rank {} has given no sign of life for {} s, and rank {} waits for it in its call {}; its process is "
                      "stopped (SIGSTOP, a debugger), or its machine or the network to it is lost",
                      peer, std::chrono::duration<double>(limit).count(), rank_, number));
  }
  window_->check(peer, left, number, since);
}

void MpiTransport::check(std::uint64_t number, Clock::time_point since) {
  hear_other_machines();
  if (!window_->failed() && Clock::now() - since > options_.time_limit) {
    window_->fail(fmt::format("rank {} waited {} s for the bytes of its call {}", rank_,
                              std::chrono::duration<double>(options_.time_limit).count(), number));
  }
  if (window_->failed()) throw RankFailed(window_->failure());
}

void MpiTransport::fail(const std::string& why) noexcept {
  try {
    window_->fail(fmt::format("rank {} failed: {}", rank_, why));
  } catch (const std::exception&) {  // without memory for the text
    window_->fail(why);
  }
  // This is sent even if another rank failed first, on any machine: a rank that hears that this rank has left has then received
  // a reason before. The first rank's own message may arrive later.
  if (!told_.exchange(true)) tell_other_machines(kFailureTag);
}

// Ranks of other machines cannot see the window. The sender does not wait for these messages. If there is no memory for one, a
// rank that waits for this rank finds out at its time limit.
void MpiTransport::tell_other_machines(int tag) noexcept try {
  if (one_machine()) return;
  const auto text = tag == kFailureTag ? window_->failure() : std::string();
  const std::lock_guard lock(hearing_);
  for (int r = 0; r < size_; ++r) {
    if (std::ranges::find(neighbours_, r) != neighbours_.end()) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    const auto& kept = obituaries_.emplace_back(text);
    MPI_Isend(kept.data(), static_cast<int>(kept.size()), MPI_CHAR, r, tag, inner_, &request);
    MPI_Request_free(&request);
  }
} catch (const std::exception&) {
}

void MpiTransport::hear_other_machines() {
  if (one_machine()) return;
  const std::lock_guard lock(hearing_);
  // A rank sends the reason before it leaves, so when its leave has arrived, the reason has, too.
  for (const int tag : {kLeftTag, kFailureTag}) {
    int there = 0;
    MPI_Status status;
    while (MPI_Iprobe(MPI_ANY_SOURCE, tag, inner_, &there, &status) == MPI_SUCCESS && there) {
      int length = 0;
      MPI_Get_count(&status, MPI_CHAR, &length);
      std::string text(static_cast<std::size_t>(length), ' ');
      MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, tag, inner_, MPI_STATUS_IGNORE);
      if (tag == kFailureTag) window_->fail(text, true);
      if (tag == kLeftTag) gone_.insert(status.MPI_SOURCE);
    }
  }
}

bool MpiTransport::has_left(int peer) {
  hear_other_machines();
  const std::lock_guard lock(hearing_);
  return gone_.contains(peer) || window_->has_left(peer);
}

void MpiTransport::leave() noexcept {
  tell_other_machines(kLeftTag);
  const auto limited = watchdog("the end");
  // Between machines, late messages of this kind must not reach another communicator with the same number, so these are not
  // freed.
  if (!window_->leave() || !one_machine()) return;
  MPI_Comm_free(&machine_);
  MPI_Comm_free(&inner_);
  MPI_Comm_free(&lanes_);
}

}  // namespace terrace::comm
