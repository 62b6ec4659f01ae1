#include <terrace/parallel/plan/search/candidates.h>

#include <optional>

namespace terrace {
namespace {

TensorGrid grid_in(const Degrees& d) {
  return grid_of(d.tensor_mode, static_cast<std::uint32_t>(d.tp), static_cast<std::uint32_t>(d.tensor_depth))
      .value_or(TensorGrid{});
}

std::vector<int> divisors(std::int64_t n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

class Products {
 public:
  explicit Products(const SearchSpace& space) : space_(space), given_(space.given) {}

  // Tensor and context groups stay on one node. Degrees of context and expert ranks above 1 are as given.
  std::vector<Candidate> all() {
    const auto experts =
        given_.degrees.ep > 1 || space_.model.experts == 0 ? std::vector{given_.degrees.ep} : divisors(space_.model.experts);
    const auto ranks = static_cast<int>(space_.ranks), of_node = static_cast<int>(space_.ranks_per_node);
    auto c = given_;
    for (const int tp : divisors(of_node))
      for (const int cp : divisors(of_node / tp))
        for (const int ep : experts) {
          if (ranks % (tp * cp * ep) != 0 || (given_.degrees.cp > 1 && cp != given_.degrees.cp)) continue;
          c.degrees.tp = tp;
          c.degrees.cp = cp;
          c.degrees.ep = ep;
          add_pipelines(c, ranks / (tp * cp * ep));
        }
    return std::move(all_);
  }

 private:
  // Adds the candidate with every number of pipeline ranks; the other ranks are data ranks.
  void add_pipelines(Candidate c, int ranks) {
    for (const int pp : divisors(ranks)) {
      c.degrees.pp = pp;
      c.degrees.dp = ranks / pp;
      add_rings(c);
    }
  }

  // Adds the candidate with its context ranks as one group (Ulysses), in one ring, and in rings of every size.
  void add_rings(Candidate c) {
    const auto ranks = static_cast<std::uint32_t>(c.degrees.cp);
    if (ranks == 1) c.place.ring = 1;
    if (ranks == 1 || given_.degrees.cp > 1) return add_modes(c);
    for (const auto ring : {1U, ranks}) {
      c.place.ring = ring;
      add_modes(c);
    }
    for (std::uint32_t ring = 2; ring <= ranks / 2; ring *= 2) {
      if (ranks % ring != 0) continue;
      c.place.ring = ring;
      add_modes(c);
    }
  }

  // Adds the candidate with the tensor ranks in a row, and in every grid. More grids than the side of a grid has ranks would
  // only cost memory.
  void add_modes(Candidate c) {
    for (const auto mode : {TensorMode::line, TensorMode::square, TensorMode::squares, TensorMode::cube})
      for (int depth = 1; depth * depth * depth <= c.degrees.tp; ++depth) {
        if ((mode == TensorMode::squares) != (depth > 1)) continue;
        c.degrees.tensor_mode = mode;
        c.degrees.tensor_depth = depth;
        if (mode == TensorMode::line || grid_in(c.degrees).side > 1) all_.push_back(c);
      }
  }

  const SearchSpace& space_;
  const Candidate& given_;
  std::vector<Candidate> all_;
};

// Completes the candidate and makes it legal, if possible. Sharing the rows between layers costs no bytes and saves
// activations, so it is left out only where the ranks cannot divide the tokens.
std::optional<Candidate> legal(Candidate c, const SearchSpace& space) {
  auto& d = c.degrees;
  const auto batch = space.micro_batch.batch;
  const auto of_all_ranks = batch * d.dp * d.ep;
  if (space.sequences % of_all_ranks != 0) return std::nullopt;
  c.micro_batches = static_cast<std::uint32_t>(space.sequences / of_all_ranks);
  d.micro_batches = static_cast<int>(c.micro_batches) * d.dp;

  const auto grid = grid_in(d);
  const bool divides = batch * (space.micro_batch.seq / d.cp) % d.tp == 0;
  if (grid.side > 1 && (!divides || batch % (std::int64_t{grid.depth} * grid.side) != 0)) return std::nullopt;
  auto& place = c.place;
  place.sequence = divides && d.tp > 1;
  if (!place.sequence || grid.side > 1) place.pieces = 1;
  place.cube = grid.cube;

  const auto ring = static_cast<int>(place.ring);
  d.ring = ring == 1 || ring == d.cp ? 0 : ring;
  d.zigzag = d.zigzag && ring > 1 && !place.two_rings;
  d.with.add_several(Feature::row_pieces, place.pieces);
  if (!problems(d, space.model, static_cast<int>(space.ranks)).empty()) return std::nullopt;
  place.mesh = mesh_of(d, space.model.kv_heads);
  return c;
}

}  // namespace

std::vector<Candidate> candidates(const SearchSpace& space) {
  std::vector<Candidate> all;
  for (const auto& product : Products(space).all()) {
    const auto candidate = legal(product, space);
    if (!candidate) continue;
    const bool shares = candidate->degrees.dp * candidate->degrees.cp > 1;
    for (std::uint32_t zero = 0; zero <= (shares ? 3U : 0U); ++zero) {
      all.push_back(*candidate);
      all.back().zero = zero;
    }
  }
  return all;
}

}  // namespace terrace
