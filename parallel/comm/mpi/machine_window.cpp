#include <terrace/parallel/comm/mpi/machine_window.h>

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/parallel/comm/mpi/stopped_ranks.h>
#include <terrace/parallel/comm/rank_failed.h>
#include <terrace/parallel/comm/wait_clock.h>

namespace terrace::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kControlBytes = 2 * kPageBytes, kHeadBytes = kControlBytes + 2 * kPageBytes;
constexpr std::size_t kTextBytes = 160, kFailureBytes = 4096;
constexpr auto kLook = 10ms;                           // how often a waiting rank checks whether the others still run
constexpr std::chrono::nanoseconds kLookAtState = 1s;  // how often it looks whether the process that it waits for is stopped
constexpr auto kLeavingTogether = 1s;                  // how long a rank that leaves waits for the others to leave too
// A waiting rank first spins, then yields, then sleeps: waking up takes as long as several pieces. If ranks share cores it
// sleeps at once, to leave the core to the rank that it waits for.
constexpr int kSpins = 100;
constexpr std::chrono::nanoseconds kYielding = 100us;

// A futex between processes; std::atomic's wait() is private to one process.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds time) {
  const timespec wait{0, static_cast<long>(time.count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &wait, nullptr, 0);
}
void futex_wake(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// Mappings begin at pages, but Open MPI puts a window at any multiple of eight bytes; all ranks round the same address.
std::byte* at_page(std::byte* address) {
  const auto into = reinterpret_cast<std::uintptr_t>(address) % kPageBytes;
  return into == 0 ? address : address + (kPageBytes - into);
}

// Texts that another process may read while they are written: a torn text is no worse than an old one.
template <std::size_t kBytes>
struct SharedText {
  std::array<std::atomic<char>, kBytes> chars = {};
  void set(const std::string& text) {
    const auto length = std::min(text.size(), kBytes - 1);
    for (std::size_t i = 0; i < length; ++i) chars[i].store(text[i], std::memory_order_relaxed);
    chars[length].store('\0', std::memory_order_release);
  }
  [[nodiscard]] std::string get() const {
    std::string text;
    for (const auto& c : chars) {
      const char value = c.load(std::memory_order_relaxed);
      if (value == '\0') break;
      text += value;
    }
    return text;
  }
};

}  // namespace

namespace {
std::atomic<bool> process_died{false}, rank_failed{false};
}
bool MachineWindow::a_process_died() { return process_died; }
bool MachineWindow::a_rank_failed() { return rank_failed; }

// One for each rank, at the start of its part of the window.
struct MachineWindow::Control {
  alignas(kLine) std::atomic<std::uint64_t> written{0};  // pieces that others may read
  alignas(kLine) std::atomic<std::uint64_t> settled{0};  // pieces whose folded part others may read
  alignas(kLine) std::atomic<std::uint64_t> read{0};     // pieces that this rank has read from all ranks
  alignas(kLine) std::array<std::atomic<std::uint64_t>, kSlots> signature = {};
  std::atomic<pid_t> process{0};
  std::atomic<bool> left{false};
  std::atomic<std::uint64_t> ended{0}, pending{0}, number{0};
  SharedText<kTextBytes> call;
};

// One for all ranks, after the first rank's control.
struct MachineWindow::Group {
  alignas(kLine) std::atomic<std::uint32_t> bell{0};
  alignas(kLine) std::atomic<std::uint32_t> sleepers{0};
  std::atomic<std::uint32_t> failed{0};   // 1: the text is being written, 2: it is complete
  std::atomic<std::uint32_t> leaving{0};  // how many ranks, or kAlone once a rank stopped waiting for the rest
  std::atomic<bool> process_died{false};
  SharedText<kFailureBytes> failure;
  static constexpr std::uint32_t kAlone = 1U << 31;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share them");

MachineWindow::MachineWindow(MPI_Comm machine, std::string name, std::vector<int> members, std::chrono::milliseconds time_limit)
    : machine_(machine),
      name_(std::move(name)),
      members_(std::move(members)),
      time_limit_(time_limit),
      yielding_(members_.size() <= std::thread::hardware_concurrency() ? kYielding : std::chrono::nanoseconds{}) {
  static_assert(sizeof(Control) <= kControlBytes && sizeof(Group) <= kHeadBytes - kControlBytes);
  int rank = 0;
  MPI_Comm_rank(machine, &rank);
  rank_ = static_cast<std::size_t>(rank);
  constexpr auto bytes = kHeadBytes + kSlots * kSlotBytes;
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");  // each rank's part begins at a separate page, in memory near it
  std::byte* mine = nullptr;
  const int status = MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + kPageBytes), 1, info, machine, &mine, &window_);
  MPI_Info_free(&info);
  if (status != MPI_SUCCESS) throw Error(name_ + ": MPI_Win_allocate_shared failed; is /dev/shm full?");
  mine = at_page(mine);
  std::memset(mine, 0, bytes);  // the first touch, here and not in the first collective
  auto* const control = new (mine) Control;
  control->process = getpid();
  if (rank == 0) new (mine + kControlBytes) Group;
  for (int r = 0; r < static_cast<int>(members_.size()); ++r) {
    MPI_Aint length = 0;
    int unit = 0;
    std::byte* theirs = nullptr;
    MPI_Win_shared_query(window_, r, &length, &unit, &theirs);
    theirs = at_page(theirs);
    controls_.push_back(reinterpret_cast<Control*>(theirs));
    if (r == 0) group_ = reinterpret_cast<Group*>(theirs + kControlBytes);
  }
  stopped_.resize(controls_.size());
  MPI_Barrier(machine);
  sees_processes_ = std::ranges::all_of(controls_, [](const Control* c) { return kill(c->process, 0) == 0; });
}

bool MachineWindow::leave() noexcept {
  controls_[rank_]->left = true;
  ring();
  const auto all = static_cast<std::uint32_t>(members_.size());
  ++group_->leaving;
  const auto begin = Clock::now();
  for (;;) {
    auto leaving = group_->leaving.load();
    if (leaving == all) break;
    if (leaving & Group::kAlone) return false;
    if (failed() || Clock::now() - begin > kLeavingTogether) {
      if (group_->leaving.compare_exchange_strong(leaving, leaving | Group::kAlone)) return false;
      continue;
    }
    std::this_thread::sleep_for(100us);
  }
  MPI_Win_free(&window_);
  return true;
}

std::byte* MachineWindow::slot(std::size_t rank, std::uint64_t piece) const {
  return reinterpret_cast<std::byte*>(controls_[rank]) + kHeadBytes + piece % kSlots * kSlotBytes;
}

// ---- positions and failures --------------------------------------------------------------------------------------------

void MachineWindow::begin(std::uint64_t number, const Call& call) {
  const std::lock_guard lock(mutex_);
  log_.begin(number, call);
  if (is_collective(call.operation)) {
    number_ = number;
    patient_ = call.patient ? number : 0;
  }
  publish_position();
}

void MachineWindow::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  log_.end(number);
  publish_position();
}

void MachineWindow::publish_position() {
  const auto position = log_.now();
  auto& mine = *controls_[rank_];
  mine.call.set(position.call);
  mine.number = position.number;
  mine.pending = position.pending;
  mine.ended = position.ended;
}

std::string MachineWindow::positions() const {
  std::string text;
  for (std::size_t r = 0; r < controls_.size(); ++r) {
    const auto& c = *controls_[r];
    const Position position{c.ended, c.pending, c.number, c.call.get(), c.left};
    text += fmt::format("\n  rank {}: {}", members_[r], to_string(position));
  }
  return text;
}

bool MachineWindow::failed() const { return group_->failed.load() != 0; }

std::string MachineWindow::failure() const {
  while (group_->failed.load() == 1) std::this_thread::yield();
  rank_failed = true;
  if (group_->process_died) process_died = true;
  return group_->failure.get();
}

void MachineWindow::fail(const std::string& why, bool on_another_machine) noexcept {
  rank_failed = true;
  std::uint32_t none = 0;
  if (!group_->failed.compare_exchange_strong(none, 1)) return;  // the first reason stays
  try {
    group_->failure.set(on_another_machine ? why : fmt::format("{}: {}{}", name_, why, positions()));
  } catch (const std::exception&) {  // without memory for the text
    group_->failure.set(why);
  }
  group_->failed = 2;
  ring();
}

std::chrono::nanoseconds MachineWindow::stopped_for(std::size_t member) {
  const std::lock_guard lock(mutex_);
  auto& [looked, time] = stopped_[member];
  const auto now = Clock::now();
  const auto every = std::min<std::chrono::nanoseconds>(kLookAtState, time_limit_ / 4);
  const std::chrono::nanoseconds since = now - looked;
  if (since < every) return time;
  looked = now;
  // A late look tells nothing about the time before it: perhaps both processes were stopped.
  time = is_stopped(controls_[member]->process) ? time + std::min(since, 2 * every) : std::chrono::nanoseconds{};
  return time;
}

std::size_t MachineWindow::place_of(int member) const {
  return static_cast<std::size_t>(std::ranges::find(members_, member) - members_.begin());
}

bool MachineWindow::has_left(int member) const {
  const auto r = place_of(member);
  return r < members_.size() && controls_[r]->left;
}

void MachineWindow::check(int member, bool left, std::uint64_t number, Clock::time_point since) {
  const auto r = place_of(member);
  const int me = members_[rank_];
  if (!failed() && left) {
    fail(fmt::format("rank {} has left, and rank {} waits for it in its call {}", member, me, number));
  } else if (!failed() && r < members_.size()) {
    const auto& other = *controls_[r];
    if (sees_processes_ && kill(other.process, 0) != 0 && errno == ESRCH) {
      group_->process_died = true;
      fail(fmt::format("rank {} (process {}) died, and rank {} waits for it in its call {}", member, other.process.load(), me,
                       number));
    } else if (sees_processes_ && stopped_for(r) > time_limit_) {
      fail(fmt::format(
          "rank {} (process {}) has been stopped for {} s, by SIGSTOP or a debugger, and rank {} waits for it in its call {}",
          member, other.process.load(), std::chrono::duration<double>(time_limit_).count(), me, number));
    }
  }
  if (!failed() && number != patient_ && Clock::now() - since > time_limit_) {
    fail(fmt::format("rank {} waited {} s in its call {}; not arrived: rank {}", me,
                     std::chrono::duration<double>(time_limit_).count(), number, member));
  }
  if (failed()) throw RankFailed(failure());
}

// ---- pieces ------------------------------------------------------------------------------------------------------------

void MachineWindow::advance(std::atomic<std::uint64_t>& progress, std::uint64_t value) {
  progress.store(value);
  ring();
}

// A rank that goes to sleep after this read sees all stores before it.
void MachineWindow::ring() {
  if (group_->sleepers.load() == 0) return;
  group_->bell.fetch_add(1);
  futex_wake(group_->bell);
}

void MachineWindow::wait_all(std::atomic<std::uint64_t> Control::*progress, std::uint64_t value) {
  WaitClock wait;
  for (std::size_t r = 0; r < controls_.size(); ++r) {
    const auto ready = [&] { return (controls_[r]->*progress).load() >= value; };
    for (int spin = 0; spin < kSpins && !ready(); ++spin) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    for (const auto until = wait.since() + yielding_; !ready() && Clock::now() < until;) sched_yield();
    while (!ready()) {
      const auto bell = group_->bell.load();
      group_->sleepers.fetch_add(1);
      if (!ready() && !failed()) futex_wait(group_->bell, bell, kLook);
      group_->sleepers.fetch_sub(1);
      const bool left = controls_[r]->left;  // read before ready(): a rank makes everything ready before it leaves
      if (!ready()) check(members_[r], left, number_, wait.since());
    }
  }
}

void MachineWindow::check_signatures(std::uint64_t mine, std::uint64_t piece) {
  for (std::size_t r = 0; r < controls_.size(); ++r) {
    if (controls_[r]->signature[piece % kSlots].load() == mine) continue;
    fail(fmt::format(
        "ranks {} and {} issued collectives that do not match; all ranks must issue them in the same order with equal "
        "sizes",
        members_[std::min(r, rank_)], members_[std::max(r, rank_)]));
    throw RankFailed(failure());
  }
}

// write(k) fills this rank's slot once all have read its old content; settle(k) folds into it once all have written; read(k)
// reads the slots of the others. A rank writes ahead as far as there are free slots, so that the ranks need not wait for the
// slowest one at every piece.
void MachineWindow::run_pieces(const Call& call, std::int64_t count, const Piece& write, const Piece& settle,
                               const Piece& read) {
  auto& mine = *controls_[rank_];
  const auto signature = signature_of(call);
  const auto number_of = [&](std::int64_t k) { return piece_ + static_cast<std::uint64_t>(k); };
  const auto all_read = [&](std::uint64_t value) {
    return std::ranges::all_of(controls_, [&](const Control* c) { return c->read.load(std::memory_order_acquire) >= value; });
  };
  const std::int64_t lag = settle ? 1 : 0;  // a piece is read while the others settle the next
  std::int64_t written = 0;
  for (std::int64_t k = 0; k < count + lag; ++k) {
    for (; written < count; ++written) {
      const auto number = number_of(written);
      const auto freed = number < kSlots ? 0 : number + 1 - kSlots;
      if (written > k && !all_read(freed)) break;
      wait_all(&Control::read, freed);
      if (write) write(written);
      mine.signature[number % kSlots] = signature;
      advance(mine.written, number + 1);
    }
    if (k < count) {
      wait_all(&Control::written, number_of(k) + 1);
      if (k == 0) check_signatures(signature, number_of(0));
      if (settle) {
        settle(k);
        advance(mine.settled, number_of(k) + 1);
      } else {
        mine.settled.store(number_of(k) + 1);
      }
    }
    if (k < lag) continue;
    if (settle) wait_all(&Control::settled, number_of(k - lag) + 1);
    if (read) read(k - lag);
    advance(mine.read, number_of(k - lag) + 1);
  }
  piece_ += static_cast<std::uint64_t>(count);
}

}  // namespace terrace::comm
