#include <terrace/parallel/mesh/mesh.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

constexpr auto kInnermostFirst = [] {
  auto axes = kAllAxes;
  std::reverse(axes.begin(), axes.end());
  return axes;
}();

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kAllAxes.size()> names{"pp",    "copy", "shard", "expert", "context",
                                                                "depth", "row",  "col",   "part",   "twin"};
  return names[static_cast<std::size_t>(axis)];
}

void demand(const Mesh& mesh, std::uint32_t rank) {
  if (rank >= mesh.size())
    throw Error(fmt::format("mesh: there is no rank {} in {}", rank, to_string(mesh)), ErrorKind::refused);
}

}  // namespace

std::string to_string(AxisSet axes) {
  std::vector<std::string_view> names;
  for (const auto axis : kAllAxes)
    if (axes.has(axis)) names.push_back(name_of(axis));
  return fmt::format("{}", fmt::join(names, "+"));
}

std::uint32_t Mesh::degree(Axis axis) const {
  const std::array degrees{pp, copy, shard, expert, context, depth, row, col, part, twin};
  return degrees[static_cast<std::size_t>(axis)];
}

AxisSet Mesh::varying() const {
  AxisSet axes;
  for (const auto axis : kAllAxes)
    if (degree(axis) > 1) axes = axes | axis;
  return axes;
}

std::uint32_t Mesh::size(AxisSet axes) const {
  std::uint32_t ranks = 1;
  for (const auto axis : kAllAxes)
    if (axes.has(axis)) ranks *= degree(axis);
  return ranks;
}

std::uint32_t Mesh::index(std::uint32_t rank, AxisSet axes) const {
  demand(*this, rank);
  std::uint32_t index = 0, place_value = 1;
  for (const auto axis : kInnermostFirst) {
    if (axes.has(axis)) {
      index += rank % degree(axis) * place_value;
      place_value *= degree(axis);
    }
    rank /= degree(axis);
  }
  return index;
}

std::uint32_t Mesh::at(std::uint32_t rank, AxisSet axes, std::uint32_t index) const {
  demand(*this, rank);
  std::uint32_t other = 0, place_value = 1;
  for (const auto axis : kInnermostFirst) {
    auto& digits = axes.has(axis) ? index : rank;
    other += digits % degree(axis) * place_value;
    if (axes.has(axis)) rank /= degree(axis);
    digits /= degree(axis);
    place_value *= degree(axis);
  }
  if (index != 0)
    throw Error(fmt::format("mesh: {} of {} has fewer ranks", to_string(axes), to_string(*this)), ErrorKind::refused);
  return other;
}

std::vector<std::uint32_t> Mesh::members(std::uint32_t rank, AxisSet axes) const {
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < size(axes); ++i) all.push_back(at(rank, axes, i));
  return all;
}

std::uint32_t Mesh::stride(AxisSet axes) const {
  std::uint32_t stride = 1;
  for (const auto axis : kInnermostFirst) {
    if (axes.has(axis) && degree(axis) > 1) return stride;
    stride *= degree(axis);
  }
  return 1;  // one rank
}

void demand_mesh(const Mesh& mesh) {
  std::uint64_t ranks = 1;
  for (const auto axis : kAllAxes) {
    if (mesh.degree(axis) == 0)
      throw Error(fmt::format("mesh: {} has degree 0; the least is 1", name_of(axis)), ErrorKind::refused);
    ranks *= mesh.degree(axis);
    if (ranks > 1U << 30) throw Error(fmt::format("mesh: more than {} ranks", 1U << 30), ErrorKind::refused);
  }
}

std::string to_string(const Mesh& mesh) {
  std::vector<std::string> parts;
  for (const auto axis : kAllAxes)
    if (mesh.degree(axis) > 1) parts.push_back(fmt::format("{} {}", name_of(axis), mesh.degree(axis)));
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, " × "));
}

}  // namespace terrace
