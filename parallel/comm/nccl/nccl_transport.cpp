#include <terrace/parallel/comm/nccl/nccl_transport.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/parallel/comm/rank_failed.h>

namespace terrace::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 5ms;                  // how often a waiting thread checks the others
constexpr std::size_t kSlotAlignment = 512;  // more than a packed block
// Three lanes of sums and sixteen of messages take 112 of an H100's 132 multiprocessors at once. NCCL alone would take up to 32
// for each call.
constexpr int kBlocksOfSums = 16, kBlocksOfMessages = 4;
constexpr std::size_t kFirstBytes = 16;  // of the messages that make connections

std::size_t bytes_of(std::int64_t elements, std::size_t each) { return static_cast<std::size_t>(elements) * each; }

// The half of the slots that receives a piece.
std::size_t half_of(std::int64_t piece) { return static_cast<std::size_t>(piece % 2); }

bool reduces(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::all_reduce || operation == Operation::reduce;
}

template <class T>
ConstBytes bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
Bytes writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

NcclTransport::NcclTransport(std::shared_ptr<Transport> host, std::shared_ptr<Transport> letters, NcclParts parts)
    : host_(std::move(host)), letters_(std::move(letters)), parts_([&] {
        if (!parts.order) parts.order = std::make_shared<LaunchOrder>(host_->rank(), parts.multiprocessors);
        return std::move(parts);
      }()) {}

NcclTransport::~NcclTransport() {
  const auto close = [&](Channel& channel) {
    if (!channel.handle) return;
    // ncclCommDestroy may wait for the other ranks, of which some may be missing after a failure.
    failed_ ? parts_.library->abort(channel.handle) : parts_.library->leave(channel.handle);
  };
  close(ranks_);
  ranks_.stream.reset();  // before folds_, its branch
  for (auto& [route, channel] : routes_) close(channel);
}

void NcclTransport::run(const Call& call, std::uint64_t number) {
  if (!lies_on_device(call)) return host_->run(call, number);
  auto meeting = call;
  meeting.on_device = true;
  host_->run(meeting, number);
  const bool shared = is_collective(call.operation);
  if (!shared && call.peer == rank()) return message_to_itself(call);
  auto& channel = channel_of(call);
  const bool needs_slots = reduces(call.operation) && !slots_.data();
  auto& order = *parts_.order;
  LaunchOrder::Turn turn(order, !channel.handle || needs_slots ? order.blocks() : shared ? kBlocksOfSums : kBlocksOfMessages);
  turn.agree(greatest_of_all(call, turn.number()));
  turn.take();
  if (!channel.handle) join(channel, call, number);
  if (needs_slots) slots_ = parts_.device->memory().allocate(parts_.fold_bytes);
  shared ? collective(call, number, turn) : message(channel, call, number, turn);
}

// A message's ranks also answer on the lane that is as far from the last one as the message's is from the first.
std::uint64_t NcclTransport::greatest_of_all(const Call& call, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size()));
  if (is_collective(call.operation)) {
    letter({.operation = Operation::all_gather, .from = {bytes_of(mine)}, .to = {std::as_writable_bytes(std::span(all))}});
    return std::ranges::max(all);
  }
  if (call.lane >= kMessageLanes / 2)
    throw Error(fmt::format("{}: messages between GPUs have lanes below {}, not {}", name(), kMessageLanes / 2, call.lane));
  std::uint64_t theirs = 0;
  const int answer = kMessageLanes - 1 - call.lane;
  const bool sends = call.operation == Operation::send;
  const auto tell = [&] {
    letter({.operation = Operation::send, .from = {bytes_of(mine)}, .peer = call.peer, .lane = sends ? call.lane : answer});
  };
  if (sends) tell();
  letter({.operation = Operation::receive,
          .to = {writable_bytes_of(theirs)},
          .peer = call.peer,
          .lane = sends ? answer : call.lane});
  if (!sends) tell();
  return std::max(mine, theirs);
}

bool NcclTransport::lies_on_device(const Call& call) const {
  bool device = false, host = false;
  const auto look = [&](ConstBytes span) {
    if (!span.empty()) (parts_.library->is_device_memory(parts_.device_index, span.data()) ? device : host) = true;
  };
  std::ranges::for_each(call.from, look);
  std::ranges::for_each(call.to, look);
  if (device && host)
    throw std::logic_error(to_string(call) + ": not supported between device and host memory; copy the bytes first");
  return device;
}

std::shared_ptr<Transport> NcclTransport::split(int color, int key, const std::string& name, std::uint64_t number) {
  auto host = host_->split(color, key, name, number);
  auto letters = letters_->split(color, key, name, ++letters_sent_);
  return host ? std::make_shared<NcclTransport>(std::move(host), std::move(letters), parts_) : nullptr;
}

void NcclTransport::fail(const std::string& why) noexcept {
  failed_ = true;
  host_->fail(why);
  letters_->fail(why);
}

void NcclTransport::leave() noexcept {
  host_->leave();
  letters_->leave();
}

// ---- the calls -----------------------------------------------------------------------------------------------------------

void NcclTransport::collective(const Call& call, std::uint64_t number, LaunchOrder::Turn& turn) {
  auto& channel = ranks_;
  auto& nccl = *parts_.library;
  if (call.operation == Operation::all_gather && machines().count() > 1) {
    const auto& mine = call.from.front();
    auto* const own = call.to.front().data() + static_cast<std::size_t>(rank()) * mine.size();
    if (own != mine.data()) channel.stream->copy(own, mine.data(), mine.size());
  }
  run_on(channel, call, number, &turn, [&](cuda::CudaStreamHandle stream) {
    if (machines().count() > 1 && call.operation != Operation::all_to_all) return between_machines(call, stream);
    switch (call.operation) {
      case Operation::all_gather:
        return with_handle(channel, [&](NcclHandle handle) {
          demand(nccl.all_gather(call.from.front().data(), call.to.front().data(), call.from.front().size(), handle, stream),
                 "ncclAllGather");
        });
      case Operation::broadcast:
        return with_handle(channel, [&](NcclHandle handle) {
          demand(nccl.broadcast(call.to.front().data(), call.to.front().size(), call.peer, handle, stream), "ncclBroadcast");
        });
      case Operation::all_to_all:
        return exchange(
            stream, [&](int r) { return call.from[static_cast<std::size_t>(r)]; },
            [&](int r) { return call.to[static_cast<std::size_t>(r)]; });
      case Operation::reduce_scatter:
      case Operation::all_reduce: return fold_blocks(call, stream);
      case Operation::reduce: return fold_at_root(call, stream);
      default: throw std::logic_error("no bytes in device memory: " + to_string(call));
    }
  });
}

// One group: out(r) goes to rank r, in(r) comes from it. Both sides know a message's size, so none is sent that has no bytes.
void NcclTransport::exchange(cuda::CudaStreamHandle stream, const std::function<ConstBytes(int)>& out,
                             const std::function<Bytes(int)>& in) {
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int r = 0; r < size(); ++r) {
    if (const auto to = out(r); !to.empty()) outgoing.push_back({r, to});
    if (const auto from = in(r); !from.empty()) incoming.push_back({r, from});
  }
  exchange(stream, outgoing, incoming);
}

void NcclTransport::exchange(cuda::CudaStreamHandle stream, const std::vector<Outgoing>& out, const std::vector<Incoming>& in) {
  auto& nccl = *parts_.library;
  with_handle(ranks_, [&](NcclHandle handle) {
    demand(nccl.group_start(), "ncclGroupStart");
    for (const auto& [to, bytes] : out) demand(nccl.send(bytes.data(), bytes.size(), to, handle, stream), "ncclSend");
    for (const auto& [from, bytes] : in) demand(nccl.receive(bytes.data(), bytes.size(), from, handle, stream), "ncclRecv");
    demand(nccl.group_end(), "ncclGroupEnd");
  });
}

void NcclTransport::with_handle(Channel& channel, const std::function<void(NcclHandle)>& calls) const {
  const std::lock_guard lock(channel.calls);
  if (failed_ || !channel.handle)
    throw RankFailed(fmt::format("{}: rank {}: stopped, because an earlier call failed", name(), rank()));
  calls(channel.handle);
}

// Ends what the stream runs. A call of the library lasts microseconds; a longer one waits in the library for a rank that is
// gone, and returns an error once it is aborted. No call follows.
void NcclTransport::abort(Channel& channel) {
  constexpr auto kCall = 1s;
  failed_ = true;  // the stream issues no further call
  // Waits by the system clock: g++ 12's ThreadSanitizer does not know the call that waits by the steady clock.
  const std::unique_lock lock(channel.calls, std::chrono::system_clock::now() + kCall);
  parts_.library->abort(std::exchange(channel.handle, nullptr));
}

void NcclTransport::between_machines(const Call& call, cuda::CudaStreamHandle stream) {
  const BetweenMachines::Means means{
      .exchange = [&](const std::vector<Outgoing>& out, const std::vector<Incoming>& in) { exchange(stream, out, in); },
      .fold =
          [&](const Reduction& reduction, std::byte* to, const Terms& terms, std::int64_t count) {
            parts_.fold(stream, {.reduction = reduction,
                                 .to = to,
                                 .own = terms.own,
                                 .slots = terms.others,
                                 .stride_bytes = terms.stride,
                                 .ranks = terms.terms,
                                 .rank = terms.own_place,
                                 .count = count});
          },
      .staging =
          [&](std::size_t bytes) {
            if (bytes <= parts_.fold_bytes) return slots_.data();
            throw Error(fmt::format("{}: a buffer of {} bytes is too small to reduce among {} ranks", name(), parts_.fold_bytes,
                                    size()));
          },
      .staging_bytes = parts_.fold_bytes};
  const BetweenMachines between(machines(), rank(), means);
  const auto blocks_of = [&](std::size_t bytes, std::size_t each) {  // in bytes, each rank a block of whole elements
    std::vector<Block> blocks;
    const auto unit = static_cast<std::int64_t>(each), count = static_cast<std::int64_t>(bytes) / unit;
    for (int r = 0; r < size(); ++r) {
      const auto block = block_of(count, r, size());
      blocks.push_back({block.begin * unit, block.count * unit});
    }
    return blocks;
  };
  const auto only_of = [&](int owner, std::size_t length) {
    std::vector<Block> blocks(static_cast<std::size_t>(size()));
    blocks[static_cast<std::size_t>(owner)] = {0, static_cast<std::int64_t>(length)};
    return blocks;
  };
  const auto from = call.from.front();
  const auto to = call.to.front();
  switch (call.operation) {
    case Operation::all_gather: return between.gather(to, blocks_of(to.size(), from.size()));
    case Operation::broadcast: return between.gather(to, only_of(call.peer, to.size()));
    default: break;
  }
  const auto elements = from.size() / call.reduction.from_bytes();
  const bool by_machine = adds_by_machine(machines(), call.reduction);
  if (call.operation == Operation::reduce)
    return by_machine ? between.fold(call.reduction, from.data(), only_of(call.peer, elements), to.data())
                      : fold_at_root(call, stream);
  if (!by_machine) {
    fold_blocks(call, stream);
  } else {
    const auto places = blocks_of(to.size(), call.reduction.to_bytes());
    const auto own = call.operation == Operation::all_reduce ? places[static_cast<std::size_t>(rank())].begin : 0;
    between.fold(call.reduction, from.data(), blocks_of(elements, 1), to.data() + own);
  }
  if (call.operation == Operation::all_reduce) between.gather(to, blocks_of(to.size(), call.reduction.to_bytes()));
}

// Each rank owns a block, and folds it piece by piece from the contributions that all have sent it. For an all-reduce on one
// machine, it then sends every folded piece to all. The next piece arrives in one half of the slots while the GPU folds the
// other half.
void NcclTransport::fold_blocks(const Call& call, cuda::CudaStreamHandle stream) {
  const std::size_t from_each = call.reduction.from_bytes(), to_each = call.reduction.to_bytes();
  const auto* const from = call.from.front().data();
  auto* const to = call.to.front().data();
  const bool hands_out = call.operation == Operation::all_reduce;
  const auto elements = static_cast<std::int64_t>(call.from.front().size() / from_each);
  const auto most = static_cast<std::int64_t>(slot_bytes() / from_each);
  const auto mine = block_of(elements, rank(), size());
  const std::int64_t pieces = (block_of(elements, 0, size()).count + most - 1) / most;
  const auto piece_of = [&](std::int64_t piece, int r) -> Block {
    const auto block = block_of(elements, r, size());
    return {block.begin + piece * most, std::clamp<std::int64_t>(block.count - piece * most, 0, most)};
  };
  const auto folded = [&](std::int64_t piece) -> Bytes {
    const auto own = piece_of(piece, rank());
    return {to + bytes_of(hands_out ? own.begin : own.begin - mine.begin, to_each), bytes_of(own.count, to_each)};
  };
  const auto take_in = [&](std::int64_t piece) {
    exchange(
        stream,
        [&](int r) -> ConstBytes {
          if (r == rank()) return {};
          const auto its = piece_of(piece, r);
          return {from + bytes_of(its.begin, from_each), bytes_of(its.count, from_each)};
        },
        [&](int r) -> Bytes {
          if (r == rank()) return {};
          return {slot(half_of(piece), r), bytes_of(piece_of(piece, rank()).count, from_each)};
        });
  };
  const auto fold = [&](std::int64_t piece, cuda::CudaStreamHandle on) {
    const auto own = piece_of(piece, rank());
    fold_slots(call.reduction, half_of(piece), from + bytes_of(own.begin, from_each), folded(piece).data(), own.count, on);
  };
  const auto hand_out = [&](std::int64_t piece) {
    if (!hands_out || machines().count() > 1) return;
    exchange(
        stream, [&](int r) -> ConstBytes { return r == rank() ? Bytes{} : folded(piece); },
        [&](int r) -> Bytes {
          if (r == rank()) return {};
          const auto its = piece_of(piece, r);
          return {to + bytes_of(its.begin, to_each), bytes_of(its.count, to_each)};
        });
  };
  if (pieces == 0) return;
  if (pieces == 1) {
    take_in(0);
    fold(0, stream);
    return hand_out(0);
  }
  auto& beside = folds();
  const cuda::CudaBranch::Join join(beside, stream);
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    take_in(piece);
    beside.follow(stream);
    fold(piece, beside.handle());
    beside.mark(half_of(piece));
    if (piece == 0) continue;
    beside.hold(stream, half_of(piece - 1));  // from here on this half may be taken again
    hand_out(piece - 1);
  }
  beside.hold(stream, half_of(pieces - 1));
  hand_out(pieces - 1);
}

cuda::CudaBranch& NcclTransport::folds() {
  if (!folds_)
    folds_ = std::make_unique<cuda::CudaBranch>(cuda::cuda_stream(*ranks_.stream).runtime(),
                                                fmt::format("{}, stream \"folds\"", parts_.device->name()));
  return *folds_;
}

// The root's link carries all contributions, which is slow; no reduction to one rank matters for speed.
void NcclTransport::fold_at_root(const Call& call, cuda::CudaStreamHandle stream) {
  const std::size_t from_each = call.reduction.from_bytes(), to_each = call.reduction.to_bytes();
  const int root = call.peer;
  const auto elements = static_cast<std::int64_t>(call.from.front().size() / from_each);
  const auto most = static_cast<std::int64_t>(slot_bytes() / from_each);
  for (std::int64_t at = 0; at < elements; at += most) {
    const auto count = std::min(most, elements - at);
    const auto bytes = bytes_of(count, from_each);
    const auto* const own = call.from.front().data() + bytes_of(at, from_each);
    exchange(
        stream,
        [&](int r) -> ConstBytes {
          if (r != root || rank() == root) return {};
          return {own, bytes};
        },
        [&](int r) -> Bytes {
          if (r == root || rank() != root) return {};
          return {slot(0, r), bytes};
        });
    if (rank() == root) fold_slots(call.reduction, 0, own, call.to.front().data() + bytes_of(at, to_each), count, stream);
  }
}

void NcclTransport::fold_slots(const Reduction& reduction, std::size_t half, const std::byte* own, std::byte* to,
                               std::int64_t count, cuda::CudaStreamHandle stream) {
  if (count == 0) return;
  parts_.fold(stream, {.reduction = reduction,
                       .to = to,
                       .own = own,
                       .slots = slot(half, 0),
                       .stride_bytes = slot_bytes(),
                       .ranks = size(),
                       .rank = rank(),
                       .count = count});
}

void NcclTransport::message(Channel& channel, const Call& call, std::uint64_t number, LaunchOrder::Turn& turn) {
  run_on(channel, call, number, &turn, [&](cuda::CudaStreamHandle stream) {
    with_handle(channel, [&](NcclHandle handle) {
      auto& nccl = *parts_.library;
      if (call.operation == Operation::send) {
        demand(nccl.send(call.from.front().data(), call.from.front().size(), 1, handle, stream), "ncclSend");
      } else {
        demand(nccl.receive(call.to.front().data(), call.to.front().size(), 0, handle, stream), "ncclRecv");
      }
    });
  });
}

// The sending call passes the address of its bytes, and waits until they are copied.
void NcclTransport::message_to_itself(const Call& call) {
  const std::byte* from = nullptr;
  const Call send{.operation = Operation::send, .from = {bytes_of(from)}, .peer = rank(), .lane = call.lane};
  const Call receive{.operation = Operation::receive, .to = {writable_bytes_of(from)}, .peer = rank(), .lane = call.lane};
  if (call.operation == Operation::send) {
    from = call.from.front().data();
    letter(send);
    letter(receive);
    return;
  }
  letter(receive);
  const auto stream = parts_.device->make_stream("to itself");
  stream->copy(call.to.front().data(), from, call.to.front().size());
  stream->synchronize();
  letter(send);
}

// ---- channels ------------------------------------------------------------------------------------------------------------

// One handle per direction and lane: NCCL runs the calls of one handle in order, and lanes must not wait for each other.
NcclTransport::Channel& NcclTransport::channel_of(const Call& call) {
  if (is_collective(call.operation)) return ranks_;
  const bool sends = call.operation == Operation::send;
  const std::lock_guard lock(mutex_);  // the channel itself needs none: only one call of a lane runs at a time
  return routes_[sends ? Route{rank(), call.peer, call.lane} : Route{call.peer, rank(), call.lane}];
}

void NcclTransport::join(Channel& channel, const Call& call, std::uint64_t number) {
  const bool shared = is_collective(call.operation), sends = call.operation == Operation::send;
  NcclJoin how{.ranks = shared ? size() : 2,
               .rank = shared  ? rank()
                       : sends ? 0
                               : 1,
               .most_blocks = std::min(parts_.order->blocks(), shared ? kBlocksOfSums : kBlocksOfMessages)};
  if (how.rank == 0) demand(parts_.library->make_id(&how.id), "ncclGetUniqueId");
  if (shared) {
    letter({.operation = Operation::broadcast, .from = {bytes_of(how.id)}, .to = {writable_bytes_of(how.id)}, .peer = 0});
  } else if (sends) {
    letter({.operation = Operation::send, .from = {bytes_of(how.id)}, .peer = call.peer, .lane = call.lane});
  } else {
    letter({.operation = Operation::receive, .to = {writable_bytes_of(how.id)}, .peer = call.peer, .lane = call.lane});
  }
  join(channel, how, call, number);
  connect(channel, how, call, number);
}

// NCCL allocates memory for a connection at its first message. So every rank sends to every other one now.
void NcclTransport::connect(Channel& channel, const NcclJoin& how, const Call& call, std::uint64_t number) {
  const auto ranks = static_cast<std::size_t>(how.ranks);
  channel.first_bytes = parts_.device->memory().allocate((ranks + 1) * kFirstBytes);
  auto* const mine = channel.first_bytes.data() + ranks * kFirstBytes;
  const bool shared = is_collective(call.operation);
  run_on(channel, call, number, nullptr, [&](cuda::CudaStreamHandle stream) {
    if (shared) folds();  // its stream, too, is made once
    with_handle(channel, [&](NcclHandle handle) {
      auto& nccl = *parts_.library;
      demand(nccl.group_start(), "ncclGroupStart");
      for (int r = 0; r < how.ranks; ++r) {
        if (r == how.rank) continue;
        auto* const theirs = channel.first_bytes.data() + static_cast<std::size_t>(r) * kFirstBytes;
        if (shared || how.rank == 0) demand(nccl.send(mine, kFirstBytes, r, handle, stream), "ncclSend");
        if (shared || how.rank == 1) demand(nccl.receive(theirs, kFirstBytes, r, handle, stream), "ncclRecv");
      }
      demand(nccl.group_end(), "ncclGroupEnd");
    });
  });
}

// A rank that does not come, or a network that does not work, ends the join as it would end the call.
void NcclTransport::join(Channel& channel, const NcclJoin& how, const Call& call, std::uint64_t number) {
  channel.stream = parts_.device->make_stream("nccl");
  NcclHandle handle = nullptr;
  channel.stream->submit([&] { demand(parts_.library->begin_join(&handle, how), "ncclCommInitRankConfig"); });
  channel.stream->synchronize();
  channel.handle = handle;
  const auto since = Clock::now();
  for (int state = 0; (state = parts_.library->joined(handle)) != 0; std::this_thread::sleep_for(kLook)) {
    try {
      if (state != kNcclInProgress) demand(state, "ncclCommInitRankConfig");
      host_->check(number, call.patient ? Clock::now() : since);
    } catch (const RankFailed& failed) {
      abort(channel);
      throw RankFailed(fmt::format("{}\n  rank {} was joining {} ranks in NCCL", failed.what(), this->rank(), how.ranks));
    } catch (...) {
      abort(channel);
      throw;
    }
  }
}

std::size_t NcclTransport::slot_bytes() const {
  const auto each = parts_.fold_bytes / 2 / static_cast<std::size_t>(size()) / kSlotAlignment * kSlotAlignment;
  if (each == 0)
    throw Error(
        fmt::format("{}: a buffer of {} bytes is too small to reduce among {} ranks", name(), parts_.fold_bytes, size()));
  return each;
}

std::byte* NcclTransport::slot(std::size_t half, int rank) const {
  return slots_.data() + (half * static_cast<std::size_t>(size()) + static_cast<std::size_t>(rank)) * slot_bytes();
}

void NcclTransport::run_on(Channel& channel, const Call& call, std::uint64_t number, LaunchOrder::Turn* turn,
                           const std::function<void(cuda::CudaStreamHandle)>& issue) {
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
    std::exception_ptr failure;
  } end;
  cuda::cuda_stream(*channel.stream).launch([&](cuda::CudaStreamHandle stream) {
    issue(stream);
    if (turn) turn->pass();
  });
  channel.stream->then([&end](const std::exception_ptr& failure) {
    const std::lock_guard lock(end.mutex);
    end.reached = true;
    end.failure = failure;
    end.changed.notify_all();
  });
  const auto since = Clock::now();
  std::exception_ptr trouble;
  std::unique_lock lock(end.mutex);
  while (!end.changed.wait_for(lock, kLook, [&] { return end.reached; })) {
    if (trouble) continue;
    try {
      demand(parts_.library->trouble(channel.handle), "ncclCommGetAsyncError");
      host_->check(number, call.patient ? Clock::now() : since);
    } catch (...) {
      trouble = std::current_exception();
      abort(channel);
    }
  }
  if (trouble) std::rethrow_exception(trouble);
  if (end.failure) std::rethrow_exception(end.failure);
}

void NcclTransport::demand(int result, const char* what) const {
  if (result != 0) throw Error(fmt::format("{}: rank {}: {}: {}", name(), rank(), what, parts_.library->text(result)));
}

}  // namespace terrace::comm
