#include <terrace/parallel/shard_spec.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/error.h>
#include <terrace/core/units.h>

namespace terrace {
namespace {

// The axes that cut dimension `dim`, outer first.
std::vector<Axis> cutters(const Mesh& mesh, const ShardSpec& spec, int dim) {
  std::vector<Axis> axes;
  std::ranges::copy_if(mesh.axes(), std::back_inserter(axes),
                       [&](const Axis& axis) { return spec.on(axis.name) == Placement::shard(dim); });
  return axes;
}

int parts_of(const std::vector<Axis>& axes) {
  int parts = 1;
  for (const auto& axis : axes) parts *= axis.degree;
  return parts;
}

void demand_sound(const Mesh& mesh, const ShardSpec& spec, const Shape& shape) {
  const auto wrong = problems(mesh, spec, shape);
  if (!wrong.empty()) throw Error(fmt::format("{}", fmt::join(wrong, "\n")), Exit::usage);
}

Shape shape_of(const std::vector<std::int64_t>& d) {
  switch (d.size()) {
    case 0: return {};
    case 1: return {d[0]};
    case 2: return {d[0], d[1]};
    case 3: return {d[0], d[1], d[2]};
    default: return {d[0], d[1], d[2], d[3]};
  }
}

}  // namespace

Placement ShardSpec::on(const std::string& axis) const {
  const auto found = axes_.find(axis);
  return found == axes_.end() ? Placement::replicate() : found->second;
}

std::string to_string(const ShardSpec& spec) {
  std::vector<std::string> parts;
  for (const auto& [axis, placement] : spec.axes()) {
    if (placement.kind == Placement::Kind::shard) parts.push_back(fmt::format("{}: shard({})", axis, placement.dim));
    if (placement.kind == Placement::Kind::partial) parts.push_back(axis + ": partial");
  }
  return parts.empty() ? "replicated" : fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> problems(const Mesh& mesh, const ShardSpec& spec, const Shape& shape) {
  std::vector<std::string> wrong;
  for (const auto& [axis, placement] : spec.axes()) {
    if (std::ranges::find(mesh.axes(), axis, &Axis::name) == mesh.axes().end()) {
      wrong.push_back(fmt::format("{}: the mesh ({}) has no axis {}", to_string(spec), to_string(mesh), axis));
    }
    if (placement.kind == Placement::Kind::shard && (placement.dim < 0 || placement.dim >= static_cast<int>(shape.rank()))) {
      wrong.push_back(fmt::format("{}: {} has no dimension {}", to_string(spec), to_string(shape), placement.dim));
    }
  }
  for (std::size_t dim = 0; dim < shape.rank(); ++dim) {
    const auto parts = parts_of(cutters(mesh, spec, static_cast<int>(dim)));
    const auto length = shape[dim];
    if (length % parts == 0) continue;
    const auto below = length / parts * parts;
    wrong.push_back(fmt::format("{}: dimension {} of {} does not divide into {} slices; the nearest lengths that do are {}",
                                to_string(spec), dim, to_string(shape), parts,
                                below > 0 ? fmt::format("{} and {}", below, below + parts) : fmt::format("{}", parts)));
  }
  return wrong;
}

std::vector<Slice> slices_of(const Mesh& mesh, const ShardSpec& spec, const Shape& shape, int rank) {
  demand_sound(mesh, spec, shape);
  std::vector<Slice> slices;
  for (std::size_t dim = 0; dim < shape.rank(); ++dim) {
    Slice slice{0, shape[dim]};
    for (const auto& axis : cutters(mesh, spec, static_cast<int>(dim))) {
      slice.length /= axis.degree;
      slice.begin += slice.length * mesh.coordinate(rank, axis.name);
    }
    slices.push_back(slice);
  }
  return slices;
}

Shape local_shape(const Mesh& mesh, const ShardSpec& spec, const Shape& shape) {
  std::vector<std::int64_t> lengths;
  for (const auto& slice : slices_of(mesh, spec, shape, 0)) lengths.push_back(slice.length);
  return shape_of(lengths);
}

}  // namespace terrace
