#include <terrace/parallel/comm/positions.h>

#include <fmt/format.h>

namespace terrace {

Position PositionLog::now() const {
  Position position = position_;
  position.pending = pending_.size();
  if (!pending_.empty()) {
    position.number = pending_.begin()->first;
    position.call = pending_.begin()->second;
  }
  return position;
}

std::string report(std::span<const Position> positions) {
  std::string text;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    const auto& p = positions[rank];
    text += fmt::format("\n  rank {}: {} calls ended, ", rank, p.ended);
    if (p.pending > 0) {
      text += fmt::format("in call {}, {}", p.number, p.call);
      if (p.pending > 1) text += fmt::format(", and {} more", p.pending - 1);
    } else {
      text += p.left ? "has left" : "in no call";
    }
  }
  return text;
}

}  // namespace terrace
