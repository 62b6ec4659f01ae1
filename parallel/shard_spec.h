// Which part of a tensor each rank of a mesh holds: for every axis the whole tensor, a slice of one dimension, or one term of a
// sum.
//
// If several axes shard a dimension, the outer axis cuts first. All slices are equal: a length that does not divide is an
// error.
//
// Owner:   values.
// Threads: any.
// Errors:  Error(Exit::usage) for unknown axes and dimensions, and for lengths that do not divide, with the nearest that do.
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
// All problems of a spec for this shape; empty if it is correct.
std::vector<std::string> problems(const Mesh& mesh, const ShardSpec& spec, const Shape& shape);
std::vector<Slice> slices_of(const Mesh& mesh, const ShardSpec& spec, const Shape& shape, int rank);
Shape local_shape(const Mesh& mesh, const ShardSpec& spec, const Shape& shape);  // the same on all ranks

}  // namespace terrace
