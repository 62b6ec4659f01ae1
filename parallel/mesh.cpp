#include <terrace/parallel/mesh.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/error.h>

namespace terrace {
namespace {

template <class... A>
[[noreturn]] void refuse(fmt::format_string<A...> why, A&&... args) {
  throw Error("mesh: " + fmt::format(why, std::forward<A>(args)...), Exit::usage);
}

}  // namespace

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  long ranks = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].degree < 1) refuse("axis {} has degree {}; the least is 1", axes_[i].name, axes_[i].degree);
    if (index_of(axes_[i].name) != i) refuse("axis {} occurs twice", axes_[i].name);
    ranks *= axes_[i].degree;
    if (ranks > 1 << 30) refuse("more than {} ranks", 1 << 30);
  }
}

Mesh Mesh::of(int dp, int pp, int tp, int cp, int ep) {
  return Mesh({{"pp", pp}, {"dp", dp}, {"ep", ep}, {"cp", cp}, {"tp", tp}});
}

int Mesh::size() const {
  int ranks = 1;
  for (const auto& axis : axes_) ranks *= axis.degree;
  return ranks;
}

std::size_t Mesh::index_of(std::string_view name) const {
  const auto found = std::ranges::find(axes_, name, &Axis::name);
  if (found == axes_.end()) refuse("there is no axis {} in {}", name, to_string(*this));
  return static_cast<std::size_t>(found - axes_.begin());
}

void Mesh::demand_rank(int rank) const {
  if (rank < 0 || rank >= size()) refuse("there is no rank {} in {}", rank, to_string(*this));
}

int Mesh::degree(std::string_view axis) const { return axes_[index_of(axis)].degree; }

std::vector<int> Mesh::coordinates(int rank) const {
  demand_rank(rank);
  std::vector<int> digits(axes_.size());
  for (std::size_t i = axes_.size(); i-- > 0; rank /= axes_[i].degree) digits[i] = rank % axes_[i].degree;
  return digits;
}

int Mesh::coordinate(int rank, std::string_view axis) const { return coordinates(rank)[index_of(axis)]; }

int Mesh::rank_of(std::span<const int> digits) const {
  if (digits.size() != axes_.size()) refuse("{} coordinates for {} axes", digits.size(), axes_.size());
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (digits[i] < 0 || digits[i] >= axes_[i].degree) refuse("axis {} has no coordinate {}", axes_[i].name, digits[i]);
    rank = rank * axes_[i].degree + digits[i];
  }
  return rank;
}

std::vector<int> Mesh::group(int rank, std::span<const std::string> names) const {
  std::vector<bool> varies(axes_.size());
  for (const auto& name : names) varies[index_of(name)] = true;
  std::vector<std::vector<int>> all = {coordinates(rank)};
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (!varies[i]) continue;
    std::vector<std::vector<int>> more;
    for (const auto& digits : all) {
      for (int c = 0; c < axes_[i].degree; ++c) {
        more.push_back(digits);
        more.back()[i] = c;
      }
    }
    all = std::move(more);
  }
  std::vector<int> ranks;
  for (const auto& digits : all) ranks.push_back(rank_of(digits));
  return ranks;  // outer axes first: ascending
}

std::unique_ptr<Communicator> Mesh::split(Communicator& world, std::span<const std::string> names) const {
  if (world.size() != size()) refuse("{} has {} ranks, but {} started", to_string(*this), size(), world.size());
  // The smallest rank of a group is its color.
  return world.split(group(world.rank(), names).front(), world.rank(), fmt::format("{}", fmt::join(names, "+")));
}

std::string to_string(const Mesh& mesh) {
  std::vector<std::string> parts;
  for (const auto& axis : mesh.axes()) {
    if (axis.degree > 1) parts.push_back(fmt::format("{} {}", axis.name, axis.degree));
  }
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, " × "));
}

}  // namespace terrace
