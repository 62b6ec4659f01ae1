#include <terrace/tests/support/gpu/fake_nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <terrace/tests/support/gpu/fake_cuda.h>

namespace terrace::test {

// Shared by the ranks with one id: messages that wait for their receivers.
struct FakeNcclGroup {
  struct Parcel {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    bool taken = false;
  };
  std::uint64_t number = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int ranks = 0, joined = 0;
  bool lost = false;
  std::map<std::pair<int, int>, std::deque<Parcel*>> parcels;  // by source and destination
};

}  // namespace terrace::test

// A handle is a rank's seat in a group.
struct ncclComm {
  std::shared_ptr<terrace::test::FakeNcclGroup> group;
  int rank = 0, blocks = 0;
  bool aborted = false;     // under the group's mutex
  std::set<int> connected;  // ranks with which it has exchanged messages
};

namespace terrace::test {
namespace {

using Group = FakeNcclGroup;

// The launches of all GPUs, in the order of each GPU. If a GPU has room for one of them only, a launch begins when all earlier
// ones of its GPU have ended; and a launch ends when all launches that it exchanges messages with have begun. The log tells
// whether these waits form a circle.
class LaunchLog {
 public:
  struct Message {
    std::uint64_t group = 0;
    int source = 0, destination = 0;
    bool sends = false;
  };
  // False: the launch closes a circle, and is not added.
  bool add(const FakeCuda* gpu, const std::vector<Message>& messages) {
    auto& mine = gpus_[gpu];
    const Place here{gpu, mine.begin + static_cast<std::int64_t>(mine.launches.size())};
    std::vector<Place> partners;
    for (const auto& m : messages) {
      auto& [sent, received] = alone_[{m.group, m.source, m.destination}];
      auto& others = m.sends ? received : sent;
      if (others.empty()) continue;
      partners.push_back(others.front());
    }
    if (waits_for(here, partners)) return false;
    mine.launches.push_back({});
    for (const auto& m : messages) {
      auto& [sent, received] = alone_[{m.group, m.source, m.destination}];
      auto& others = m.sends ? received : sent;
      if (others.empty()) {
        (m.sends ? sent : received).push_back(here);
        continue;
      }
      const auto other = others.front();
      others.pop_front();
      if (auto* const launch = find(other)) launch->push_back(here);
      mine.launches.back().push_back(other);
    }
    if (mine.launches.size() > kKept) {
      mine.launches.pop_front();
      ++mine.begin;
    }
    return true;
  }

 private:
  using Place = std::pair<const FakeCuda*, std::int64_t>;  // the number of a launch on its GPU
  using Partners = std::vector<Place>;
  struct Gpu {
    std::int64_t begin = 0;  // number of the first launch that is kept
    std::deque<Partners> launches;
  };
  static constexpr std::size_t kKept = 64;  // of each GPU

  Partners* find(const Place& place) {
    auto& gpu = gpus_[place.first];
    const auto at = place.second - gpu.begin;
    return at >= 0 && at < static_cast<std::int64_t>(gpu.launches.size()) ? &gpu.launches[static_cast<std::size_t>(at)]
                                                                          : nullptr;
  }
  // Whether the launch `here` begins only after one of its partners has ended.
  bool waits_for(const Place& here, const Partners& partners) {
    std::map<const FakeCuda*, std::int64_t> ended, seen;  // launches below these numbers must have ended; and were followed
    ended[here.first] = here.second;
    for (bool grows = true; grows;) {
      grows = false;
      for (const auto& [gpu, until] : std::map(ended))
        for (auto at = std::max(gpus_[gpu].begin, seen[gpu]); at < until; ++at) {
          seen[gpu] = at + 1;
          const auto* const launch = find({gpu, at});
          if (!launch) continue;
          for (const auto& [other, begun] : *launch) {
            if (begun <= ended[other]) continue;
            ended[other] = begun;
            grows = true;
          }
        }
    }
    return std::ranges::any_of(partners, [&](const Place& p) { return p.second < ended[p.first]; });
  }

  std::map<const FakeCuda*, Gpu> gpus_;
  std::map<std::tuple<std::uint64_t, int, int>, std::pair<std::deque<Place>, std::deque<Place>>> alone_;  // sent, received
};

struct Office {
  std::mutex mutex;
  LaunchLog launches;
  std::uint64_t ids = 0;
  std::map<std::uint64_t, std::shared_ptr<Group>> groups;
  std::map<comm::NcclHandle, std::shared_ptr<ncclComm>> seats;
  std::vector<std::shared_ptr<ncclComm>> aborted;  // kept, so that no two handles have the same address
};
Office& office() {
  static Office one;
  return one;
}
thread_local int depth = 0;  // nesting of group_start()

}  // namespace

struct FakeNccl::Message {
  std::shared_ptr<ncclComm> seat;
  int peer = 0;
  const std::byte* from = nullptr;  // null: a receive
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  bool lost = false;
};

namespace {

template <class Message>
struct Batch {
  std::vector<Message> messages;
  cuda::CudaStreamHandle stream = nullptr;
  FakeCuda* gpu = nullptr;
  std::shared_ptr<std::atomic<std::uint64_t>> ended;
};

// Posts all sends, then takes all receives, then waits for the sends: one kernel, which ends when all have ended.
template <class Message>
void run_batch(const Batch<Message>& batch) {
  if (batch.messages.empty()) return;
  std::deque<Group::Parcel> parcels;
  auto& seat = *batch.messages.front().seat;
  auto& group = *seat.group;
  std::unique_lock lock(group.mutex);
  std::vector<std::pair<int, Group::Parcel*>> sent;
  for (const auto& m : batch.messages) {
    if (!m.from || m.lost) continue;
    parcels.push_back({m.from, m.bytes, false});
    group.parcels[{seat.rank, m.peer}].push_back(&parcels.back());
    sent.emplace_back(m.peer, &parcels.back());
  }
  group.changed.notify_all();
  for (const auto& m : batch.messages) {
    if (m.from) continue;
    auto& queue = group.parcels[{m.peer, seat.rank}];
    group.changed.wait(lock, [&] { return seat.aborted || !queue.empty(); });
    if (seat.aborted) break;
    auto* const parcel = queue.front();
    queue.pop_front();
    if (parcel->bytes == m.bytes) std::memcpy(m.to, parcel->from, m.bytes);
    parcel->taken = true;
    group.changed.notify_all();
  }
  for (auto& [peer, parcel] : sent) {
    group.changed.wait(lock, [&, p = parcel] { return seat.aborted || p->taken; });
    if (!parcel->taken) std::erase(group.parcels[{seat.rank, peer}], parcel);
  }
}

}  // namespace

namespace {
thread_local std::shared_ptr<void> open_batch;
}

std::shared_ptr<ncclComm> FakeNccl::seat_of(comm::NcclHandle handle) {
  const std::lock_guard lock(office().mutex);
  const auto found = office().seats.find(handle);
  if (found != office().seats.end()) return found->second;
  if (std::ranges::find(office().aborted, handle, &std::shared_ptr<ncclComm>::get) != office().aborted.end())
    report("a handle of NCCL's was used after its abort");
  return nullptr;
}

void FakeNccl::report(const std::string& misuse) const {
  if (options_.report) return options_.report(misuse);
  if (auto* const gpu = fake_gpu()) gpu->report_misuse(misuse);
}

FakeCuda* FakeNccl::fake_gpu() const { return dynamic_cast<FakeCuda*>(runtime_.get()); }

int FakeNccl::make_id(comm::NcclId* id) {
  const std::lock_guard lock(office().mutex);
  const auto number = ++office().ids;
  std::memcpy(id->bytes.data(), &number, sizeof number);
  return 0;
}

int FakeNccl::begin_join(comm::NcclHandle* handle, const comm::NcclJoin& how) {
  std::uint64_t number = 0;
  std::memcpy(&number, how.id.bytes.data(), sizeof number);
  if (options_.joins) options_.joins(how.most_blocks);
  if (const auto* const gpu = fake_gpu(); gpu && gpu->waiting_blocks() > 0)
    report("NCCL joins ranks beside a kernel that waits for another GPU");
  auto seat = std::make_shared<ncclComm>();
  {
    const std::lock_guard lock(office().mutex);
    if (number == 0 || number > office().ids) return kNcclInvalidUsage;
    auto& group = office().groups[number];
    if (!group) group = std::make_shared<Group>();
    group->number = number;
    seat->group = group;
    seat->rank = how.rank;
    seat->blocks = how.most_blocks;
    office().seats[seat.get()] = seat;
  }
  const std::lock_guard lock(seat->group->mutex);
  seat->group->ranks = how.ranks;
  if (!options_.join_hangs) ++seat->group->joined;
  *handle = seat.get();
  return 0;
}

int FakeNccl::joined(comm::NcclHandle handle) {
  const auto seat = seat_of(handle);
  if (!seat) return kNcclInvalidUsage;
  const std::lock_guard lock(seat->group->mutex);
  return seat->group->joined == seat->group->ranks ? 0 : options_.join_result;
}

int FakeNccl::leave(comm::NcclHandle handle) {
  const std::lock_guard lock(office().mutex);
  return office().seats.erase(handle) == 1 ? 0 : kNcclInvalidUsage;
}

int FakeNccl::abort(comm::NcclHandle handle) {
  const auto seat = seat_of(handle);
  if (!seat) return kNcclInvalidUsage;
  {
    const std::lock_guard lock(office().mutex);
    office().aborted.push_back(seat);
  }
  {
    const std::lock_guard lock(seat->group->mutex);
    seat->aborted = true;
  }
  seat->group->changed.notify_all();
  const int result = leave(handle);
  aborts_ = true;
  return result;
}

int FakeNccl::trouble(comm::NcclHandle handle) {
  const auto seat = seat_of(handle);
  if (!seat) return kNcclInvalidUsage;
  const std::lock_guard lock(seat->group->mutex);
  return seat->group->lost ? kNcclRemoteError : 0;
}

int FakeNccl::group_start() {
  if (depth++ == 0) open_batch = std::make_shared<Batch<Message>>();
  return 0;
}

int FakeNccl::group_end() {
  if (depth == 0) return kNcclInvalidUsage;
  if (--depth > 0) return 0;
  const auto batch = std::static_pointer_cast<Batch<Message>>(std::exchange(open_batch, nullptr));
  if (batch->messages.empty()) return 0;
  batch->ended = ended_;
  batch->gpu = fake_gpu();
  if (batch->gpu && !options_.any_order) {
    std::vector<LaunchLog::Message> messages;
    for (const auto& m : batch->messages) {
      const int me = m.seat->rank;
      messages.push_back({m.seat->group->number, m.from ? me : m.peer, m.from ? m.peer : me, m.from != nullptr});
    }
    std::unique_lock lock(office().mutex);
    if (!office().launches.add(&batch->gpu->gpu(), messages)) {
      lock.unlock();
      report("NCCL's communicators are launched in different orders on different GPUs");
      return kNcclInvalidUsage;
    }
  }
  keep(batch);
  // Launch arguments are copied as bytes, so they hold a pointer.
  const auto* const kept = batch.get();
  const FakeKernel kernel = [](const cuda::CudaLaunch& launch) {
    const Batch<Message>* mine = nullptr;
    std::memcpy(&mine, launch.arguments, sizeof mine);
    const auto& seat = *mine->messages.front().seat;
    const auto aborted = [&] {
      const std::lock_guard lock(seat.group->mutex);
      return seat.aborted;
    };
    if (!mine->gpu || mine->gpu->begin_waiting_kernel(seat.blocks, aborted)) {
      run_batch(*mine);
      if (mine->gpu) mine->gpu->end_waiting_kernel(seat.blocks);
    }
    ++*mine->ended;
  };
  const int code = runtime_->launch(
      {.kernel = reinterpret_cast<const void*>(kernel), .arguments = &kept, .argument_bytes = sizeof kept}, batch->stream);
  return code == 0 ? 0 : kNcclSystemError;
}

// The address at which this GPU's kernels find the bytes.
std::byte* FakeNccl::reach(const void* data) const {
  const auto* const fake = fake_gpu();
  return fake ? fake->reach(data) : static_cast<std::byte*>(const_cast<void*>(data));
}

void FakeNccl::keep(std::shared_ptr<void> batch) {
  const std::lock_guard lock(mutex_);
  batches_.push_back(std::move(batch));
}

int FakeNccl::add(const Message& message, cuda::CudaStreamHandle stream) {
  if (!message.seat) return kNcclInvalidUsage;
  {
    const std::lock_guard lock(message.seat->group->mutex);
    if (message.seat->group->joined != message.seat->group->ranks) return kNcclInvalidUsage;
  }
  if (message.seat->connected.insert(message.peer).second)
    if (const auto* const gpu = fake_gpu(); gpu && gpu->waiting_blocks() > 0)
      report("NCCL connects two ranks beside a kernel that waits for another GPU");
  const bool alone = depth == 0;
  if (alone) group_start();
  auto& batch = *std::static_pointer_cast<Batch<Message>>(open_batch);
  batch.messages.push_back(message);
  batch.stream = stream;
  return alone ? group_end() : 0;
}

int FakeNccl::send(const void* from, std::size_t bytes, int peer, comm::NcclHandle handle, cuda::CudaStreamHandle stream) {
  const auto number = messages_++;
  if (options_.before_send) options_.before_send(number);
  Message message{seat_of(handle), peer, reach(from), nullptr, bytes};
  if (number >= lose_from_ && message.seat) {
    message.lost = true;
    const std::lock_guard lock(message.seat->group->mutex);
    message.seat->group->lost = true;
  }
  return add(message, stream);
}

int FakeNccl::receive(void* to, std::size_t bytes, int peer, comm::NcclHandle handle, cuda::CudaStreamHandle stream) {
  return add({seat_of(handle), peer, nullptr, reach(to), bytes}, stream);
}

int FakeNccl::all_gather(const void* mine, void* all, std::size_t bytes, comm::NcclHandle handle,
                         cuda::CudaStreamHandle stream) {
  const auto seat = seat_of(handle);
  if (!seat) return kNcclInvalidUsage;
  group_start();
  for (int r = 0; r < seat->group->ranks; ++r) {
    auto* const to = static_cast<std::byte*>(all) + static_cast<std::size_t>(r) * bytes;
    if (r == seat->rank && to == mine) continue;
    if (bytes == 0) continue;
    send(mine, bytes, r, handle, stream);
    receive(to, bytes, r, handle, stream);
  }
  // In place, a rank does not send to itself, but all ranks still send to each other.
  return group_end();
}

int FakeNccl::broadcast(void* data, std::size_t bytes, int root, comm::NcclHandle handle, cuda::CudaStreamHandle stream) {
  const auto seat = seat_of(handle);
  if (!seat) return kNcclInvalidUsage;
  group_start();
  for (int r = 0; bytes > 0 && r < seat->group->ranks; ++r) {
    if (r == root) continue;
    if (seat->rank == root) send(data, bytes, r, handle, stream);
    if (seat->rank == r) receive(data, bytes, root, handle, stream);
  }
  return group_end();
}

std::function<void(cuda::CudaStreamHandle, const cuda::FoldWork&)> host_fold(std::shared_ptr<cuda::CudaRuntime> runtime) {
  const FakeKernel kernel = [](const cuda::CudaLaunch& launch) {
    const auto& w = *static_cast<const cuda::FoldWork*>(launch.arguments);
    std::vector<const std::byte*> from;
    for (int r = 0; r < w.ranks; ++r)
      from.push_back(r == w.rank ? w.own : w.slots + static_cast<std::size_t>(r) * w.stride_bytes);
    comm::fold(w.reduction, w.to, from, w.count);
  };
  return [runtime = std::move(runtime), kernel](cuda::CudaStreamHandle stream, const cuda::FoldWork& work) {
    runtime->launch({.kernel = reinterpret_cast<const void*>(kernel), .arguments = &work, .argument_bytes = sizeof work},
                    stream);
  };
}

}  // namespace terrace::test
