#include <terrace/parallel/comm/call.h>

#include <array>

#include <fmt/format.h>

namespace terrace::comm {
namespace {

constexpr std::array<std::string_view, 10> kNames = {"all-gather", "reduce-scatter", "all-reduce", "reduce", "broadcast",
                                                     "all-to-all", "barrier",        "split",      "send",   "receive"};

std::uint64_t sum_of(const std::vector<ConstBytes>& spans) {
  std::uint64_t bytes = 0;
  for (const auto& span : spans) bytes += span.size();
  return bytes;
}

}  // namespace

std::string_view name_of(Operation operation) { return kNames[static_cast<std::size_t>(operation)]; }

std::uint64_t Call::payload_bytes() const {
  switch (operation) {
    case Operation::all_gather:
    case Operation::broadcast:
    case Operation::receive: return to.front().size();
    case Operation::reduce_scatter:
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::send: return from.front().size();
    case Operation::all_to_all: return sum_of(from);
    case Operation::barrier:
    case Operation::split: return 0;
  }
  return 0;
}

std::string to_string(const Call& call) {
  auto text = std::string(name_of(call.operation));
  if (call.operation == Operation::barrier || call.operation == Operation::split) return text;
  text += fmt::format(" of {} bytes", call.payload_bytes());
  switch (call.operation) {
    case Operation::reduce_scatter:
    case Operation::all_reduce: return fmt::format("{} ({})", text, to_string(call.reduction));
    case Operation::reduce: return fmt::format("{} ({}) to rank {}", text, to_string(call.reduction), call.peer);
    case Operation::broadcast: return fmt::format("{} from rank {}", text, call.peer);
    case Operation::send: return fmt::format("{} to rank {} on lane {}", text, call.peer, call.lane);
    case Operation::receive: return fmt::format("{} from rank {} on lane {}", text, call.peer, call.lane);
    default: return text;
  }
}

std::uint64_t sent_bytes(const Call& call, int rank, int size) {
  const auto ranks = static_cast<std::uint64_t>(size);
  const auto me = static_cast<std::size_t>(rank);
  switch (call.operation) {
    case Operation::all_gather: return (ranks - 1) * call.from.front().size();
    case Operation::reduce_scatter: return call.from.front().size() / ranks * (ranks - 1);
    case Operation::all_reduce: {
      // A reduce-scatter sends all but the own block, an all-gather sends the own block to all others.
      const auto element = call.reduction.from_bytes();
      const auto count = static_cast<std::int64_t>(call.from.front().size() / element);
      const auto own = static_cast<std::uint64_t>(block_of(count, rank, size).count) * element;
      return call.from.front().size() - own + (ranks - 1) * own;
    }
    case Operation::reduce: return rank == call.peer ? 0 : call.from.front().size();
    case Operation::broadcast: return rank == call.peer && size > 1 ? call.to.front().size() : 0;
    case Operation::all_to_all: return sum_of(call.from) - call.from[me].size();
    case Operation::send: return call.from.front().size();
    case Operation::receive:
    case Operation::barrier:
    case Operation::split: return 0;
  }
  return 0;
}

std::uint64_t signature_of(const Call& call) {
  const auto bytes = call.operation == Operation::all_to_all ? 0 : call.payload_bytes();
  std::uint64_t h = 0xcbf29ce484222325ULL;  // FNV-1a's constants, a field at a time
  for (const std::uint64_t x :
       {static_cast<std::uint64_t>(call.operation), static_cast<std::uint64_t>(call.reduction.from),
        static_cast<std::uint64_t>(call.reduction.to), static_cast<std::uint64_t>(call.reduction.fold),
        static_cast<std::uint64_t>(call.reduction.onto), static_cast<std::uint64_t>(call.reduction.blocks),
        static_cast<std::uint64_t>(call.reduction.order), static_cast<std::uint64_t>(call.peer + 1),
        static_cast<std::uint64_t>(call.on_device), bytes}) {
    h = (h ^ x) * 0x100000001b3ULL;
    h ^= h >> 29;
  }
  return h;
}

}  // namespace terrace::comm
