// A matrix rounded to 8 bits for products (core/math/float8.h): its codes, those of the transposed matrix, and their scale. It
// is read once, whether one product needs its rows, another one its columns, or both.
//
// Owner: a view owns nothing. Threads: values.
#pragma once

#include <terrace/core/math/float8.h>
#include <terrace/parallel/layers/parts/scratch.h>

namespace terrace::layers {

// Activations and weights have the format with more leading bits, gradients the one with more exponents.
inline constexpr DType kFloat8Values = DType::e4m3, kFloat8Gradients = DType::e5m2;

struct Float8Matrix {
  TensorView codes = {}, turned = {}, scale = {};  // codes or turned is empty if no product reads it
};

// Of a matrix [rows, columns]: TensorSpec::shape of its codes.
inline Shape float8_shape(std::int64_t rows, std::int64_t columns) { return {rows, math::float8_columns(columns)}; }

// The bytes that rounding reads and writes for each number of 16 bits: it reads it for the scale, and again for its codes.
constexpr double float8_rounding_bytes(int orientations) { return 2 * 2 + orientations; }

}  // namespace terrace::layers
