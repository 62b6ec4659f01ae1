#include <terrace/parallel/comm/machines.h>

#include <algorithm>

namespace terrace::comm {

Machines Machines::one(int ranks) {
  Machines m;
  m.firsts_ = {0};
  m.ranks_ = ranks;
  return m;
}

Machines Machines::of(std::span<const int> machine_of_rank) {
  Machines m;
  m.ranks_ = static_cast<int>(machine_of_rank.size());
  for (std::size_t r = 0; r < machine_of_rank.size(); ++r)
    if (r == 0 || machine_of_rank[r] != machine_of_rank[r - 1]) m.firsts_.push_back(static_cast<int>(r));
  return m;
}

int Machines::of_rank(int rank) const {
  return static_cast<int>(std::ranges::upper_bound(firsts_, rank) - firsts_.begin()) - 1;
}

int Machines::size(int machine) const { return (machine + 1 < count() ? first(machine + 1) : ranks_) - first(machine); }

int Machines::deputy(int machine, int owner) const { return first(machine) + (owner - first(of_rank(owner))) % size(machine); }

std::vector<int> Machines::owners_of(int rank) const {
  const int mine = of_rank(rank), place = rank - first(mine), step = size(mine);
  std::vector<int> owners;
  for (int m = 0; m < count(); ++m)
    for (int p = place; p < size(m); p += step) owners.push_back(first(m) + p);
  return owners;
}

int Machines::rounds() const {
  int rounds = 0;
  while ((1 << rounds) < count()) ++rounds;
  return rounds;
}

// Which of the machines first .. first + 2^round - 1 has their sum of a block: the one whose number has the home's low bits, as
// far as such a machine exists.
int Machines::holder(int first, int round, int home) const {
  for (int half = (1 << round) / 2; half >= 1; half /= 2)
    if ((home & half) != 0 && first + half < count()) first += half;
  return first;
}

std::optional<Machines::Meeting> Machines::meeting(int round, int machine, int home) const {
  const int half = 1 << round, left = machine / (2 * half) * (2 * half), right = left + half;
  if (right >= count()) return std::nullopt;
  const int of_left = holder(left, round, home), of_right = holder(right, round, home);
  if (machine != of_left && machine != of_right) return std::nullopt;
  if ((home & half) != 0) return Meeting{.keeper = of_right, .giver = of_left, .keeper_is_left = false};
  return Meeting{.keeper = of_left, .giver = of_right, .keeper_is_left = true};
}

namespace {

// How many of the 2^round values of a home's low bits lead to the busiest of `machines` machines (Machines::holder).
std::int64_t most_held(int machines, int round) {
  const int half = (1 << round) / 2;
  if (half == 0 || machines >= 2 * half) return 1;
  return machines <= half ? 2 * most_held(machines, round - 1) : most_held(machines - half, round - 1);
}

}  // namespace

std::int64_t busiest_blocks(int machines) {
  std::int64_t blocks = 0;
  for (int round = 0; (1 << round) < machines; ++round) {
    const int half = 1 << round, last = (machines - 1) / (2 * half) * (2 * half) + half;  // right machine of the last meeting
    const std::int64_t homes = (machines + 2 * half - 1) / (2 * half);                    // homes with equal low bits
    blocks += homes * (last < machines ? most_held(machines - last, round) : 1);
  }
  return blocks;
}

DType sum_dtype(const Reduction& r) { return r.from == DType::fp64 ? DType::fp64 : DType::fp32; }
std::size_t sum_bytes(const Reduction& r) { return static_cast<std::size_t>(sum_elements(r, 1)) * size_of(sum_dtype(r)); }
std::int64_t sum_elements(const Reduction& r, std::int64_t count) { return r.blocks ? count * math::kBlock8Elements : count; }
Reduction within_machine(const Reduction& r) {
  return {.from = r.from, .to = sum_dtype(r), .fold = r.fold, .blocks = r.blocks};
}
Reduction across_machines(const Reduction& r) { return {.from = sum_dtype(r), .to = sum_dtype(r), .fold = r.fold}; }
Reduction onto_result(const Reduction& r) { return {.from = sum_dtype(r), .to = r.to, .fold = r.fold, .onto = r.onto}; }

bool adds_by_machine(const Machines& machines, const Reduction& reduction) {
  return machines.count() > 1 && reduction.order == SumOrder::machines;
}

void fold(const Machines& machines, const Reduction& r, std::byte* to, std::span<const std::byte* const> from,
          std::int64_t count) {
  if (!adds_by_machine(machines, r)) return fold(r, to, from, count);
  constexpr std::size_t kPieceBytes = std::size_t{16} << 10;  // of a machine's sum, so that all sums stay in the cache
  const auto each = sum_bytes(r);
  const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(kPieceBytes / each));
  const auto size = static_cast<std::size_t>(std::min(most, count)) * each;
  std::vector<std::byte> sums(size * static_cast<std::size_t>(machines.count()));
  const auto sum_of = [&](int machine) { return sums.data() + static_cast<std::size_t>(machine) * size; };
  std::vector<const std::byte*> sources;
  for (std::int64_t at = 0; at < count; at += most) {
    const auto n = std::min(most, count - at), wide = sum_elements(r, n);
    for (int m = 0; m < machines.count(); ++m) {
      sources.clear();
      for (int i = 0; i < machines.size(m); ++i)
        sources.push_back(from[static_cast<std::size_t>(machines.first(m)) + static_cast<std::size_t>(i)] +
                          static_cast<std::size_t>(at) * r.from_bytes());
      fold(within_machine(r), sum_of(m), sources, n);
    }
    for (int apart = 1; apart < machines.count(); apart *= 2)
      for (int left = 0; left + apart < machines.count(); left += 2 * apart) {
        sources.assign({sum_of(left), sum_of(left + apart)});
        fold(across_machines(r), sum_of(left), sources, wide);
      }
    sources.assign({sum_of(0)});
    fold(onto_result(r), to + static_cast<std::size_t>(at) * r.to_bytes(), sources, wide);
  }
}

}  // namespace terrace::comm
