// A matrix plus a product of low rank, W + s · L · R, range by range: how an adapter is merged into its matrix.
//
// Every element is the sum of its products in fp64, in ascending order of the rank, times s, plus W, rounded once to W's dtype.
// So its bits depend neither on the ranges, nor on the threads, nor on the processor.
//
// Threads: any; one call computes on the pool. Errors: std::bad_alloc only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/tensor.h>

namespace terrace::lm {

struct LowRank {
  std::span<const double> left;   // [rows, rank]
  std::span<const double> right;  // [rank, columns]
  std::int64_t rank = 0, columns = 0;
  double scale = 1;
};
// `range`: elements of the matrix from number `first` on, row-major, in fp32, bf16 or fp64.
void add_low_rank(ThreadPool& pool, const TensorView& range, std::int64_t first, const LowRank& sum);

void widen(std::span<double> to, const TensorView& from);  // exactly
// `matrix` is row-major and has `columns` columns.
std::vector<double> transposed(std::span<const double> matrix, std::int64_t columns);

}  // namespace terrace::lm
