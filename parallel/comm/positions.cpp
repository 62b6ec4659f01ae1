#include <terrace/parallel/comm/positions.h>

#include <fmt/format.h>

namespace terrace::comm {

Position PositionLog::now() const {
  Position position = position_;
  position.pending = pending_.size();
  if (!pending_.empty()) {
    position.number = pending_.begin()->first;
    position.call = pending_.begin()->second;
  }
  return position;
}

std::string to_string(const Position& p) {
  const auto ended = fmt::format("{} calls ended, ", p.ended);
  if (p.pending == 0) return ended + (p.left ? "has left" : "in no call");
  const auto in_call = fmt::format("{}in call {}, {}", ended, p.number, p.call);
  return p.pending == 1 ? in_call : fmt::format("{}, and {} more", in_call, p.pending - 1);
}

std::string report(std::span<const Position> positions) {
  std::string text;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    text += fmt::format("\n  rank {}: {}", rank, to_string(positions[rank]));
  }
  return text;
}

}  // namespace terrace::comm
