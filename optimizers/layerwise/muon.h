// Muon (Jordan et al.: "Muon: an optimizer for hidden layers in neural networks", 2024) for the matrices of hidden layers, with
// the scale of Liu et al. ("Muon is scalable for LLM training", 2025), so that it can share one rate with AdamW, which updates
// all other tensors. Its scratch and its arithmetic, shared by the host's loops (muon.cpp) and the GPU's kernels
// (cuda/layer_update.h).
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include <terrace/core/math/math.h>
#include <terrace/optimizers/layerwise/layer_work.h>
#include <terrace/optimizers/rules/adam_moments.h>

namespace terrace::rules {

struct MuonLayer {
  static constexpr const char* kName = "muon";
  static constexpr Packed kSecondMoment = Packed::own;
  static constexpr bool kAllDirections = true;
  static constexpr bool kBitsOfDevice = true;  // matrix products
  static constexpr bool kHiddenOnly = true;
  static constexpr std::array kStates{ChunkKind::first_moment, ChunkKind::second_moment};

  // x ← a·x + b·(x xᵀ)x + c·(x xᵀ)²x drives all singular values towards 1; these factors need few iterations.
  static constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  static constexpr int kIterations = 5;
  static constexpr double kSmallestNorm = 1e-7;
  static constexpr double kScale = 0.2;  // times the root of the longer side: an orthogonal matrix's elements get AdamW's size

  static bool is_orthogonalised(const UpdateTensor& t) { return t.hidden && t.is_matrix(); }
  static bool needs_all(const UpdateTensor& t) { return is_orthogonalised(t); }

  template <class A>
  struct Scratch {
    std::span<A> packed;                 // second moments of the tensors that AdamW updates
    std::span<A> product, gram, square;  // of one matrix
  };
  template <class A>
  static Scratch<A> scratch(const LayerShape& shape, ScratchPlan& plan) {
    std::int64_t matrix = 0, gram = 0;
    for (const auto& t : shape.tensors) {
      if (!is_orthogonalised(t)) continue;
      const auto shorter = std::min(t.rows, t.columns);
      matrix = std::max(matrix, t.elements());
      gram = std::max(gram, shorter * shorter);
    }
    return {.packed = plan.take<A>(most_numbers(shape)),
            .product = plan.take<A>(matrix),
            .gram = plan.take<A>(gram),
            .square = plan.take<A>(gram)};
  }

  // The elements that AdamW updates, chunk by chunk of this rank.
  static std::vector<PackedRange> packed(const LayerShape& shape) {
    std::vector<PackedRange> all;
    each_number(shape, [&](std::int64_t rank, const PackedRange& range) {
      if (rank == shape.share.rank) all.push_back(range);
    });
    return all;
  }

  // For hidden matrices.
  template <class A>
  struct MomentumFactors {
    A gradient_scale, momentum;
    bool nesterov;
  };
  template <class A>
  static MomentumFactors<A> momentum_factors(const OptimizerSettings& s, const UpdateStep& step, const UpdateTensor& t) {
    return {.gradient_scale = static_cast<A>(step.gradient_scale * t.gradient_scale),
            .momentum = static_cast<A>(s.momentum),
            .nesterov = s.nesterov};
  }
  template <class A>
  TERRACE_INLINE static A direction(const MomentumFactors<A>& f, A gradient, A& m) {
    const A g = gradient * f.gradient_scale;  // 1
    m = f.momentum * m + g;                   // 2
    const A ahead = g + f.momentum * m;
    return f.nesterov ? ahead : m;  // 3
  }
  TERRACE_INLINE static double inverse_norm(double squares) { return 1.0 / (std::sqrt(squares) + kSmallestNorm); }

  // For all other tensors.
  template <class A>
  struct AdamFactors {
    A gradient_scale;
    AdamMoments<A> moments;
    A correction;  // 1 / (1 − β1^t)
  };
  template <class A>
  static AdamFactors<A> adam_factors(const OptimizerSettings& s, const UpdateStep& step, const UpdateTensor& t) {
    return {.gradient_scale = static_cast<A>(step.gradient_scale * t.gradient_scale),
            .moments = AdamMoments<A>::of(s, step),
            .correction = static_cast<A>(1.0 / moment_correction(s.beta1, step))};
  }
  template <class A>
  TERRACE_INLINE static A direction(const AdamFactors<A>& f, A gradient, A& m, A& v) {
    const A g = gradient * f.gradient_scale;
    const A d = move_moments(f.moments, g, m, v);
    return (f.correction * m) / d;
  }

  // y = a·y + b·x, each product rounded.
  template <class A>
  TERRACE_INLINE static A combined(A y, A x, A a, A b) {
    return a * y + b * x;
  }

  template <class A>
  static typename LayerWork<A>::Descent descent(const OptimizerSettings& s, const UpdateStep& step, const UpdateTensor& t) {
    const double rate = step.learning_rate * t.rate;
    const double scale = is_orthogonalised(t) ? kScale * std::sqrt(static_cast<double>(std::max(t.rows, t.columns))) : 1.0;
    return {.rate = rate * scale, .decay = 1.0 - rate * (s.weight_decay * t.decay)};
  }

  // Runs the products of one matrix's iterations; between them it calls combine(y, x, a, b, elements): y ← a·y + b·x.
  template <class A, class Combine>
  static void iterate(Math& math, Stream& stream, const UpdateTensor& t, A* x, const Scratch<A>& to, const Combine& combine) {
    constexpr auto kType = sizeof(A) == sizeof(double) ? DType::fp64 : DType::fp32;
    const bool wide = t.rows <= t.columns;
    const auto shorter = std::min(t.rows, t.columns);
    const auto view = [](A* data, std::int64_t rows, std::int64_t columns) {
      return TensorView{reinterpret_cast<std::byte*>(data), kType, {rows, columns}};
    };
    const auto matrix = view(x, t.rows, t.columns), product = view(to.product.data(), t.rows, t.columns);
    const auto gram = view(to.gram.data(), shorter, shorter), square = view(to.square.data(), shorter, shorter);
    for (int i = 0; i < kIterations; ++i) {
      math.matmul(stream, gram, matrix, wide ? Transpose::no : Transpose::yes, matrix, wide ? Transpose::yes : Transpose::no);
      math.matmul(stream, square, gram, Transpose::no, gram, Transpose::no);
      combine(to.square.data(), to.gram.data(), kC, kB, shorter * shorter);
      if (wide)
        math.matmul(stream, product, square, Transpose::no, matrix, Transpose::no);
      else
        math.matmul(stream, product, matrix, Transpose::no, square, Transpose::no);
      combine(x, to.product.data(), kA, 1, t.elements());
    }
  }

 private:
  // Calls use(rank, range) for all elements that AdamW updates, in the layer's order.
  template <class Use>
  static void each_number(const LayerShape& shape, const Use& use) {
    const auto chunk_elements = shape.share.ranks == 1 ? shape.run_elements : shape.chunk_elements;
    for (std::size_t i = 0; i < shape.tensors.size(); ++i) {
      const auto& t = shape.tensors[i];
      for (auto at = t.first, end = at + t.elements(); !is_orthogonalised(t) && at < end;) {
        const auto chunk = at / chunk_elements, next = std::min(end, (chunk + 1) * chunk_elements);
        use(chunk % shape.share.ranks, PackedRange{i, PackedRange::Of::elements, at - t.first, next - at});
        at = next;
      }
    }
  }
  // The greatest number of elements updated by AdamW on any rank.
  static std::int64_t most_numbers(const LayerShape& shape) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(shape.share.ranks));
    each_number(shape,
                [&](std::int64_t rank, const PackedRange& range) { numbers[static_cast<std::size_t>(rank)] += range.count; });
    return *std::ranges::max_element(numbers);
  }
};

}  // namespace terrace::rules
