#include <terrace/parallel/pipeline/orders.h>

#include <algorithm>

namespace terrace::pipeline {
namespace {

// Micro-batches go through the chunks in groups: all of one group pass each chunk in turn, then the next group does. A group
// has as many micro-batches as there are ranks. The rest joins the last group: in a smaller group of its own, its first
// backward would come too late, and the ranks would wait for one another.
struct Groups {
  explicit Groups(const OrderOptions& o)
      : size(o.ranks), count(std::max(1U, o.micro_batches / o.ranks)), end(o.micro_batches) {}
  [[nodiscard]] std::uint32_t begin_of(std::uint32_t group) const { return group * size; }
  [[nodiscard]] std::uint32_t end_of(std::uint32_t group) const { return group + 1 == count ? end : (group + 1) * size; }
  [[nodiscard]] std::uint32_t largest() const { return end - begin_of(count - 1); }
  std::uint32_t size, count, end;
};

std::vector<Task> in_groups(const OrderOptions& o, std::uint32_t rank, Work work) {
  const Groups groups(o);
  std::vector<Task> tasks;
  for (std::uint32_t group = 0; group < groups.count; ++group)
    for (std::uint32_t c = 0; c < o.chunks; ++c) {
      const auto chunk = work == Work::forward ? c : o.chunks - 1 - c;
      for (auto j = groups.begin_of(group); j < groups.end_of(group); ++j) tasks.push_back({work, chunk * o.ranks + rank, j});
    }
  return tasks;
}

}  // namespace

Schedule interleaved(const OrderOptions& o) {
  Schedule s{.placement = looping(o.ranks, o.chunks), .micro_batches = o.micro_batches, .tasks = {}};
  for (std::uint32_t rank = 0; rank < o.ranks; ++rank) {
    const auto forwards = in_groups(o, rank, Work::forward), backwards = in_groups(o, rank, Work::backward);
    const auto behind = std::size_t{o.ranks} - 1 - rank;
    std::size_t ahead = o.chunks == 1 ? behind : 2 * behind + std::size_t{o.chunks - 1} * Groups(o).largest();
    if (o.micro_batches < o.ranks) ahead = forwards.size();  // no group is whole: all forwards first
    auto& tasks = s.tasks.emplace_back();
    for (std::size_t slot = 0; slot < forwards.size() + ahead; ++slot) {
      if (slot < forwards.size()) tasks.push_back(forwards[slot]);
      if (slot >= ahead && slot - ahead < backwards.size()) tasks.push_back(backwards[slot - ahead]);
    }
  }
  return s;
}

}  // namespace terrace::pipeline
