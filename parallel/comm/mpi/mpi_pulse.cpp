#include <terrace/parallel/comm/mpi/mpi_pulse.h>

#include <numeric>

#include <terrace/core/base/error.h>

namespace terrace::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kAskTag = 0, kAnswerTag = 1;
constexpr auto kLook = 200ms;  // how often messages are looked for
constexpr auto kAsk = 1s;      // how often a rank is asked

}  // namespace

MpiPulse::MpiPulse(MPI_Comm world) {
  if (MPI_Comm_dup(world, &comm_) != MPI_SUCCESS) throw Error("MPI_Comm_dup failed");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  thread_ = std::thread([this] { answer(); });
}

MpiPulse::~MpiPulse() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<int> MpiPulse::ranks_of(MPI_Comm part) const {
  int size = 0;
  MPI_Comm_size(part, &size);
  std::vector<int> own(static_cast<std::size_t>(size)), all(own.size());
  std::iota(own.begin(), own.end(), 0);
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(part, &group);
  MPI_Comm_group(comm_, &world);
  MPI_Group_translate_ranks(group, size, own.data(), world, all.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return all;
}

// The messages have no bytes, so a rank that never receives them uses almost no memory.
void MpiPulse::send(int tag, int rank) const {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Isend(nullptr, 0, MPI_BYTE, rank, tag, comm_, &request) == MPI_SUCCESS) MPI_Request_free(&request);
}

std::chrono::nanoseconds MpiPulse::silence_of(int rank) {
  const std::lock_guard lock(mutex_);
  auto& [silent, last] = asked_[rank];
  const auto since = silent.since();
  const auto now = WaitClock::Clock::now();
  if (now - last >= kAsk) {
    last = now;
    send(kAskTag, rank);
  }
  return now - since;
}

void MpiPulse::answer() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return over_; })) {
    MPI_Status found;
    int there = 0;
    while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &there, &found) == MPI_SUCCESS && there) {
      MPI_Recv(nullptr, 0, MPI_BYTE, found.MPI_SOURCE, found.MPI_TAG, comm_, MPI_STATUS_IGNORE);
      if (found.MPI_TAG == kAskTag)
        send(kAnswerTag, found.MPI_SOURCE);
      else
        asked_[found.MPI_SOURCE].silent = {};
    }
  }
}

}  // namespace terrace::comm
