// Whether ranks of other machines still run, for calls that wait for them without a time limit (Call::patient). A rank may be
// busy with its disks for hours, but its process still answers. A process that is stopped, or whose machine or network is lost,
// does not answer.
//
// Owner:   the transports of one world on several machines share it; it ends with the last of them.
// Threads: any may ask; the pulse's own thread answers.
// Errors:  Error if MPI refuses, std::system_error if the system gives no thread.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <terrace/parallel/comm/wait_clock.h>

namespace terrace::comm {

class MpiPulse {
 public:
  explicit MpiPulse(MPI_Comm world);  // collective
  ~MpiPulse();
  MpiPulse(const MpiPulse&) = delete;
  MpiPulse& operator=(const MpiPulse&) = delete;

  [[nodiscard]] std::vector<int> ranks_of(MPI_Comm part) const;  // their numbers in the world
  // Asks this rank of the world for a sign of life, from time to time, as long as the caller keeps calling. Returns how long no
  // sign has come. Time in which this process did not run or did not ask does not count.
  std::chrono::nanoseconds silence_of(int rank);

 private:
  struct Asked {
    WaitClock silent;
    WaitClock::Clock::time_point last;
  };
  void send(int tag, int rank) const;
  void answer();

  MPI_Comm comm_ = MPI_COMM_NULL;  // never freed: late messages must not reach another communicator with its number
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Asked> asked_;  // by rank
  bool over_ = false;
  std::thread thread_;
};

}  // namespace terrace::comm
