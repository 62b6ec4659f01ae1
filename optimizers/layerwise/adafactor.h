// Adafactor (Shazeer and Stern: "Adafactor: adaptive learning rates with sublinear memory cost", ICML 2018), without a first
// moment: its scratch and its arithmetic, shared by the host's loops (adafactor.cpp) and the GPU's kernels
// (cuda/layer_update.h). docs/internals/optimizers.md has the order of sums.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <terrace/optimizers/layerwise/layer_work.h>

namespace terrace::rules {

struct AdafactorLayer {
  static constexpr const char* kName = "adafactor";
  static constexpr Packed kSecondMoment = Packed::whole;
  static constexpr bool kAllDirections = true;
  static constexpr bool kBitsOfDevice = false;
  static constexpr bool kHiddenOnly = false;
  static constexpr std::array kStates{ChunkKind::second_moment};

  static constexpr double kSmallestSquare = 1e-30;  // ε1: added to squares
  static constexpr double kSmallestScale = 1e-3;    // ε2: least root mean square of a tensor's weights that the rate uses
  static constexpr double kGreatestDirection = 1;   // d: greatest root mean square of an update, before the rate
  static constexpr double kDecayPower = -0.8;       // 1 − β2 = t^−0.8

  template <class A>
  struct Scratch {
    std::span<A> packed;           // the moments of all tensors
    std::span<double> sums;        // of one matrix: its rows, then its columns
    std::span<A> factors;          // likewise
    std::span<double> weights;     // blocks of squares, of all tensors
    std::span<double> directions;  // likewise, of one tensor
  };
  static bool needs_all(const UpdateTensor&) { return true; }
  template <class A>
  static Scratch<A> scratch(const LayerShape& shape, ScratchPlan& plan) {
    std::int64_t numbers = 0, most = 0, most_blocks = 0;
    for (const auto& t : shape.tensors) {
      numbers += numbers_of(t);
      if (t.is_matrix()) most = std::max(most, numbers_of(t));
      most_blocks = std::max(most_blocks, blocks_of(t));
    }
    return {.packed = plan.take<A>(numbers),
            .sums = plan.take<double>(most),
            .factors = plan.take<A>(most),
            .weights = plan.take_sums(blocks_of(shape.tensors)),
            .directions = plan.take<double>(most_blocks)};
  }
  // A matrix has a second moment per row and per column, any other tensor one per element.
  static std::int64_t numbers_of(const UpdateTensor& t) { return t.is_matrix() ? t.rows + t.columns : t.elements(); }
  static std::vector<PackedRange> packed(const LayerShape& shape) {
    std::vector<PackedRange> all;
    for (std::size_t i = 0; i < shape.tensors.size(); ++i) {
      const auto& t = shape.tensors[i];
      if (t.is_matrix())
        all.insert(all.end(), {{i, PackedRange::Of::rows, 0, t.rows}, {i, PackedRange::Of::columns, 0, t.columns}});
      else
        all.push_back({i, PackedRange::Of::elements, 0, t.elements()});
    }
    return all;
  }

  static double towards(const UpdateStep& step) { return std::pow(static_cast<double>(step.step), kDecayPower); }
  template <class A>
  static A gradient_scale(const UpdateStep& step, const UpdateTensor& t) {
    return static_cast<A>(step.gradient_scale * t.gradient_scale);
  }

  // The moment after a step with this mean of squares. It is limited, so that a square that overflows does not turn its whole
  // row and column into NaN. In fp64 the limit is lower, so that a row of moments at the limit still has a finite mean.
  template <class A>
  TERRACE_INLINE static A moved(A moment, double mean, double towards) {
    constexpr double kMost = std::is_same_v<A, double> ? std::numeric_limits<A>::max() / 0x1p40 : std::numeric_limits<A>::max();
    const auto old = static_cast<double>(moment);
    const double value = old + towards * ((mean + kSmallestSquare) - old);
    return static_cast<A>(value > kMost ? kMost : value);
  }
  template <class A>
  TERRACE_INLINE static A row_factor(A moment, double mean) {
    return static_cast<A>(1.0 / std::sqrt(static_cast<double>(moment) / mean));
  }
  template <class A>
  TERRACE_INLINE static A column_factor(A moment) {
    return static_cast<A>(1.0 / std::sqrt(static_cast<double>(moment)));
  }
  // For a tensor that is not a matrix: divides an element by the root of its own moment.
  template <class A>
  TERRACE_INLINE static A divided(A direction, A& moment, double towards) {
    const auto own = static_cast<double>(direction);
    moment = moved(moment, own * own, towards);
    return static_cast<A>(own / std::sqrt(static_cast<double>(moment)));
  }

  // The tensor's rate, from its sums of squares.
  TERRACE_INLINE static double rate(double learning_rate, double weights, double directions, double elements) {
    const double direction = std::sqrt(directions / elements) / kGreatestDirection, size = std::sqrt(weights / elements);
    return (learning_rate * (kSmallestScale < size ? size : kSmallestScale)) / (1.0 < direction ? direction : 1.0);
  }
};

}  // namespace terrace::rules
