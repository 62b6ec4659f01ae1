// Rotary positions in place, one block per row. The host computes exact frequencies in turns. The kernel multiplies in fp64,
// reduces the angle to one turn, and only then rounds it: nothing is lost at late positions, and the sine needs no slow path.
#pragma once

#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

inline constexpr int kRotaryPairs = 256;  // the most pairs of a head: their frequencies are arguments of the launch

template <class T>
struct RotaryArgs {
  T* x;
  std::int64_t row_elements, seq, first_position;
  int heads, half;
  bool inverse, whole;
  double length;               // factor for the length of rotated vectors
  double turns[kRotaryPairs];  // for each pair, the angle of one position in turns: its frequency / 2π
};

template <class T>
struct RotaryRows {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const RotaryArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    A* const cosine = shared_as<A>(lane);
    A* const sine = cosine + a.half;
    const std::int64_t row = lane.block_x();
    const A length = static_cast<A>(a.length);
    const double position = static_cast<double>(a.first_position + row % a.seq);
    for (int i = lane.thread(); i < a.half; i += lane.threads()) {
      const double turns = position * a.turns[i];
      const A rest = static_cast<A>(turns - std::rint(turns));
      const auto r = sine_and_cosine(rest);
      cosine[i] = length * r.cosine;
      sine[i] = length * (a.inverse ? -r.sine : r.sine);
    }
    lane.sync();
    const int vectors = (a.half + W - 1) / W;
    for (int job = lane.thread(); job < a.heads * vectors; job += lane.threads()) {
      const int i = job % vectors * W, left = a.half - i;
      T* const low = a.x + row * a.row_elements + static_cast<std::int64_t>(job / vectors) * 2 * a.half + i;
      T* const high = low + a.half;
      A u[W], v[W], turned[W], up[W];
      load(u, low, left, a.whole);
      load(v, high, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) {
        const A c = k < left ? cosine[i + k] : A(0), s = k < left ? sine[i + k] : A(0);
        turned[k] = u[k] * c - v[k] * s;
        up[k] = v[k] * c + u[k] * s;
      }
      store(low, turned, left, a.whole);
      store(high, up, left, a.whole);
    }
  }
};

}  // namespace terrace::cuda
