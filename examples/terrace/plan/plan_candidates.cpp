#include <terrace/examples/terrace/plan/plan_candidates.h>

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/ranks.h>
#include <terrace/parallel/mesh/tensor_parallel.h>

namespace terrace::cli {
namespace {

TensorGrid grid_in(const RunConfig& c) {
  return grid_of(c.parallel.tp_mode, static_cast<std::uint32_t>(c.parallel.tp), static_cast<std::uint32_t>(c.parallel.tp_depth))
      .value_or(TensorGrid{});
}

// Adds the candidate with the tensor ranks in a row, and in every grid. More grids than the side of a grid has ranks would only
// cost memory.
void add_modes(std::vector<RunConfig>& all, RunConfig c) {
  for (const auto mode : {TensorMode::line, TensorMode::square, TensorMode::squares, TensorMode::cube})
    for (std::int64_t depth = 1; depth * depth * depth <= c.parallel.tp; ++depth) {
      if ((mode == TensorMode::squares) != (depth > 1)) continue;
      c.parallel.tp_mode = mode;
      c.parallel.tp_depth = depth;
      const bool row = mode == TensorMode::line;
      if (!row && grid_in(c).side == 1) continue;
      c.parallel.sp = row && c.parallel.tp > 1;
      all.push_back(c);
    }
}

// Adds the candidate with its context ranks in every mode.
void add_context_modes(std::vector<RunConfig>& all, RunConfig c, const RunConfig& given) {
  if (c.parallel.cp == 1 || given.parallel.cp > 1) return add_modes(all, c);
  for (const auto mode : {ContextMode::ulysses, ContextMode::ring, ContextMode::both})
    for (std::int64_t ring = 2; ring <= c.parallel.cp / 2 || ring == 2; ring *= 2) {
      const bool both = mode == ContextMode::both;
      if (both && (ring * 2 > c.parallel.cp || c.parallel.cp % ring != 0)) continue;
      if (!both && ring != 2) continue;
      c.parallel.cp_mode = mode;
      c.parallel.cp_ring = both ? ring : given.parallel.cp_ring;
      add_modes(all, c);
    }
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// Adds the candidate with every number of pipeline ranks; the other ranks are data ranks.
void add_pipelines(std::vector<RunConfig>& all, RunConfig c, std::int64_t ranks, const RunConfig& given) {
  for (const auto pp : divisors(ranks)) {
    c.parallel.pp = pp;
    c.parallel.dp = ranks / pp;
    c.parallel.schedule = pp == 1 ? "1f1b" : given.parallel.schedule;
    add_context_modes(all, c, given);
  }
}

// All products of degrees. Tensor and context groups stay on one node. Degrees of context and expert ranks above 1 are as
// given.
std::vector<RunConfig> products(const RunConfig& given, const SearchSpace& space) {
  const auto experts = given.parallel.ep > 1 || given.model.experts.count == 0 ? std::vector{given.parallel.ep}
                                                                               : divisors(given.model.experts.count);
  std::vector<RunConfig> all;
  auto c = given;
  for (const auto tp : divisors(space.ranks_per_node))
    for (const auto cp : divisors(space.ranks_per_node / tp))
      for (const auto ep : experts) {
        if (space.ranks % (tp * cp * ep) != 0 || (given.parallel.cp > 1 && cp != given.parallel.cp)) continue;
        c.parallel.tp = tp;
        c.parallel.cp = cp;
        c.parallel.ep = ep;
        add_pipelines(all, c, space.ranks / (tp * cp * ep), given);
      }
  return all;
}

// Whether a run would accept the degrees.
bool is_legal(const RunConfig& c) try {
  demand_degrees(c, static_cast<int>(c.parallel.ranks()));
  return true;
} catch (const Error&) {
  return false;
}

// Makes the candidate legal, if possible. Sequence parallelism costs no bytes and saves activations, so it is left out only
// where the ranks cannot divide the tokens.
std::optional<RunConfig> legal(RunConfig c) {
  const auto grid = grid_in(c);
  const bool divides = c.train.batch_size * (c.model.seq_len / c.parallel.cp) % c.parallel.tp == 0;
  if (grid.side > 1 && (!divides || c.train.batch_size % (std::int64_t{grid.depth} * grid.side) != 0)) return std::nullopt;
  if (!divides) c.parallel.sp = false;
  if (!c.parallel.sp) c.parallel.tp_overlap = 1;
  return is_legal(c) ? std::optional(c) : std::nullopt;
}

}  // namespace

std::string flags_of(const RunConfig& c) {
  auto flags = fmt::format("--dp {}", c.parallel.dp);
  if (c.parallel.pp > 1) flags += fmt::format(" --pp {} --schedule {}", c.parallel.pp, c.parallel.schedule);
  if (c.parallel.tp > 1) flags += fmt::format(" --tp {}{}", c.parallel.tp, c.parallel.sp ? " --sp" : "");
  if (c.parallel.tp_mode != TensorMode::line) flags += fmt::format(" --tp-mode {}", word_of(c.parallel.tp_mode));
  if (c.parallel.tp_depth > 1) flags += fmt::format(" --tp-depth {}", c.parallel.tp_depth);
  if (c.parallel.cp > 1) flags += fmt::format(" --cp {}", c.parallel.cp);
  if (c.parallel.ring() > 1) flags += fmt::format(" --cp-mode {}", word_of(c.parallel.cp_mode));
  if (c.parallel.ring() > 1 && c.parallel.cp_mode == ContextMode::both)
    flags += fmt::format(" --cp-ring {}", c.parallel.cp_ring);
  if (c.parallel.ep > 1) flags += fmt::format(" --ep {}", c.parallel.ep);
  return flags + fmt::format(" --zero {} --grad-accumulation {}", c.parallel.zero, c.train.grad_accumulation);
}

std::vector<RunConfig> candidates(const RunConfig& given, const SearchSpace& space) {
  std::vector<RunConfig> all;
  for (auto c : products(given, space)) {
    const auto of_rank = c.train.batch_size * c.parallel.dp * c.parallel.ep;
    if (space.sequences % of_rank != 0) continue;
    c.train.grad_accumulation = space.sequences / of_rank;
    const auto candidate = legal(space.complete(c));
    for (std::int64_t zero = 0; candidate && zero <= (candidate->parallel.dp * candidate->parallel.cp > 1 ? 3 : 0); ++zero) {
      all.push_back(*candidate);
      all.back().parallel.zero = zero;
    }
  }
  return all;
}

}  // namespace terrace::cli
