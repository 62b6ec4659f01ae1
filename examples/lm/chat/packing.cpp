#include <terrace/examples/lm/chat/packing.h>

#include <deque>

namespace terrace::lm {

Packing::Packing(std::size_t items, std::uint64_t room, const std::function<std::uint32_t(std::size_t)>& order,
                 const std::function<std::uint64_t(std::uint32_t)>& length) {
  struct Open {
    std::size_t sequence = 0;
    std::uint64_t left = 0;
  };
  std::deque<Open> open;
  std::vector<std::size_t> sequence_of(items);  // of the i-th item in the order
  std::size_t count = 0;
  for (std::size_t i = 0; i < items; ++i) {
    const auto needed = length(order(i));
    auto at = open.begin();
    while (at != open.end() && at->left < needed) ++at;
    if (at == open.end()) {
      if (open.size() == kOpen) open.pop_front();
      open.push_back({count++, room});
      at = open.end() - 1;
    }
    at->left -= needed;
    sequence_of[i] = at->sequence;
    if (at->left == 0) open.erase(at);
  }
  first_.assign(count + 1, 0);
  for (const auto sequence : sequence_of) ++first_[sequence + 1];
  for (std::size_t s = 0; s < count; ++s) first_[s + 1] += first_[s];
  items_.resize(items);
  auto next = first_;
  for (std::size_t i = 0; i < items; ++i) items_[next[sequence_of[i]]++] = order(i);
}

}  // namespace terrace::lm
