// What each rank of a mesh holds of a tensor: for every axis the whole of it, a slice of one dimension, or one term of a sum.
//
// A dimension that several axes shard is cut by the outer axis first. Slices are equal: a dimension is padded or refused, never
// cut unevenly in silence.
//
// Owner:   values.
// Threads: any.
// Errors:  Error(Exit::usage) for axes and dimensions that do not exist and lengths that do not divide, with the nearest that
// do.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <terrace/core/tensor.h>
#include <terrace/parallel/mesh.h>

namespace terrace {

struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;  // shard

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {Kind::shard, dim}; }
  static Placement partial() { return {Kind::partial, 0}; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

class ShardSpec {
 public:
  ShardSpec() = default;  // replicated everywhere
  ShardSpec(std::initializer_list<std::pair<const std::string, Placement>> axes) : axes_(axes) {}

  [[nodiscard]] Placement on(const std::string& axis) const;
  void set(const std::string& axis, Placement placement) { axes_[axis] = placement; }
  [[nodiscard]] const std::map<std::string, Placement>& axes() const { return axes_; }
  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;

 private:
  std::map<std::string, Placement> axes_;
};
std::string to_string(const ShardSpec& spec);  // "dp: shard(0), tp: partial"; "replicated"

// A rank's slice of each dimension.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};
// Everything that is wrong with a spec for this shape; empty when nothing is.
std::vector<std::string> problems(const Mesh& mesh, const ShardSpec& spec, const Shape& shape);
std::vector<Slice> slices_of(const Mesh& mesh, const ShardSpec& spec, const Shape& shape, int rank);
Shape local_shape(const Mesh& mesh, const ShardSpec& spec, const Shape& shape);  // the same on all ranks

}  // namespace terrace
