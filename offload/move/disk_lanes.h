// The read and the write lane: one thread that alone uses the I/O engine.
//
// Each lane is a FIFO: its moves start in order, each when its clock has been reached; several are in flight at once, so that
// the disk's queue never runs empty between chunks. Requests end in any order, the lane advances in order. The thread computes
// the checksum of at most one chunk before it polls the engine again: otherwise chunks that end together would delay the next
// requests to an idle disk.
//
// A request that misses its deadline ends its lane with an error, but stays with the thread: the kernel may use its memory
// until it ends. So the thread may outlive its owner; it keeps everything alive that the request may touch.
//
// Errors:  they fail the timelines of the lanes, see Mover.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <terrace/offload/move/clock_watch.h>
#include <terrace/offload/move/move_log.h>

namespace terrace::offload {

class DiskLanes {
 public:
  DiskLanes(const Mover::Parts& parts, MoveLog& log);
  ~DiskLanes();
  // Drains, then joins the thread, unless stuck requests remain: those keep the lanes alive.
  static void close(const std::shared_ptr<DiskLanes>& lanes);
  DiskLanes(const DiskLanes&) = delete;
  DiskLanes& operator=(const DiskLanes&) = delete;

  void issue(const Move& move);
  void drain();  // until every issued move has ended, with or without error

 private:
  // One move under way; its requests stay at their addresses until all of them have ended. A flight moves from list to list, so
  // the thread needs no memory to take or to end it.
  struct Flight {
    Move move;
    Mover::Flight times;
    std::shared_ptr<ClockWatch> watch;
    std::uint64_t offset = 0;           // in the store, of the generation that is read or written
    std::uint64_t checksum = 0;         // of a write
    std::int64_t asleep_before_ns = 0;  // asleep_ns_ when it was started
    std::vector<IoRequest> requests;
    std::size_t open_requests = 0;
    int error_number = 0;
    std::exception_ptr error;
    enum class State { waiting, started, ended } state = State::waiting;
  };
  struct DiskLane {
    Lane lane{};
    std::list<Flight> flights;  // in order of issue; first those that have been started, then those that wait
    std::size_t open_requests = 0;
    bool failed = false;  // nothing more is started
  };
  // Lets a timeline wake the thread. It outlives the lanes, because a clock may be reached after they are destroyed.
  struct Waker {
    std::mutex mutex;
    IoEngine* engine = nullptr;
    void wake();
  };

  void run();
  void poll(std::chrono::nanoseconds wait);
  void fail_both(const std::exception_ptr& error);
  bool take_issued();
  bool start_ready(DiskLane& lane);  // true: there is more to do at once; the same for settle()
  void start(DiskLane& lane, Flight& flight);
  void submit(DiskLane& lane, Flight& flight, std::byte* memory);
  void look_at_clock();
  void give_up_late(DiskLane& lane);
  void finish(Flight& flight);
  bool settle(DiskLane& lane);

  const Mover::Parts parts_;
  MoveLog& log_;
  const std::chrono::nanoseconds longest_sleep_;
  const std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();
  std::int64_t looked_ns_ = now_ns(), asleep_ns_ = 0;  // of the thread: when it last ran; total time in which it was suspended
  DiskLane reads_{Lane::read, {}, 0, false}, writes_{Lane::write, {}, 0, false};

  std::mutex mutex_;
  std::condition_variable drained_;
  std::list<Flight> issued_;  // not yet taken by the thread
  std::size_t pending_ = 0;   // issued and not ended
  bool stopping_ = false;
  std::list<Flight> stuck_;          // past their deadline, but not ended; the lanes do not wait for them
  std::shared_ptr<DiskLanes> self_;  // set once only stuck flights are left
  std::thread thread_;               // last: it uses all of the above
};

}  // namespace terrace::offload
