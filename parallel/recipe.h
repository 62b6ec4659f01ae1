// A recipe: the dtypes, and so the bytes, of weights, gradients and optimizer states. The planner's physics starts here.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/dtype.h>
#include <terrace/memory/chunk.h>

namespace terrace {

struct Recipe {
  DType compute = DType::fp32;  // weights as layers read them, and activations
  DType gradient = DType::fp32;
  DType state = DType::fp32;  // moments, and the master weight where there is one
  bool master = false;        // a separate master weight; else the compute weight is the master

  static Recipe of(DType compute) {
    if (compute == DType::bf16) return {DType::bf16, DType::fp32, DType::fp32, true};
    return {compute, compute, compute, false};
  }
  [[nodiscard]] Kind master_kind() const { return master ? Kind::master : Kind::parameter; }
  [[nodiscard]] DType dtype_of(Kind kind) const {
    return kind == Kind::parameter ? compute : kind == Kind::gradient ? gradient : state;
  }
  // Every kind of state chunk, in the order that chunk ids are given.
  [[nodiscard]] std::vector<Kind> kinds() const {
    std::vector<Kind> k{Kind::parameter, Kind::gradient};
    if (master) k.push_back(Kind::master);
    k.push_back(Kind::first_moment);
    k.push_back(Kind::second_moment);
    return k;
  }
  [[nodiscard]] std::uint64_t bytes_per_parameter() const {
    std::uint64_t n = 0;
    for (const auto kind : kinds()) n += size_of(dtype_of(kind));
    return n;
  }
};

}  // namespace terrace
