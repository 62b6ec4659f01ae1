// Shared by the tests of attention's kernels: names of shapes, tensors for results, the CPU's forward.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include <terrace/tests/math/math_fixture.h>
#include <terrace/tests/support/gpu/emulated_lane.h>

#include <terrace/tests/cuda/attention_oracle.h>

namespace terrace::test {

inline std::string text(const AttentionShape& s, DType dtype) {
  return "batch " + std::to_string(s.batch) + ", seq " + std::to_string(s.seq) + ", heads " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + ", dim " + std::to_string(s.head_dim) + ", " + std::string(name_of(dtype));
}

class AttentionCase : public MathTest {
 protected:
  static Shape qkv_shape(const AttentionShape& s) { return {s.batch * s.seq, (s.heads + 2 * s.kv_heads) * s.head_dim}; }
  struct Forward {
    Tensor out, lse;
  };
  static Forward places(const AttentionShape& s, DType dtype) {
    return {Tensor(dtype, {s.batch * s.seq, s.heads * s.head_dim}), Tensor(accumulator(dtype), {s.batch, s.heads, s.seq})};
  }
  Forward cpu_forward(const AttentionShape& s, const Tensor& qkv) {
    auto f = places(s, qkv.dtype());
    math.attention(stream, s, f.out, f.lse, qkv);
    machine.sync();
    return f;
  }
  // Compares dq, dk and dv separately, each relative to its own largest value.
  static void expect_near_parts(const AttentionShape& s, const Tensor& got, const std::vector<double>& want, double relative,
                                const std::string& what) {
    const std::int64_t row = (s.heads + 2 * s.kv_heads) * s.head_dim, q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    for (const auto& [name, first, count] :
         {std::tuple{"dq", std::int64_t{0}, q}, std::tuple{"dk", q, kv}, std::tuple{"dv", q + kv, kv}}) {
      Tensor part(got.dtype(), {s.batch * s.seq, count});
      std::vector<double> want_part;
      for (std::int64_t n = 0; n < s.batch * s.seq; ++n) {
        for (std::int64_t i = 0; i < count; ++i) {
          part.set(n * count + i, got.get(n * row + first + i));
          want_part.push_back(want[static_cast<std::size_t>(n * row + first + i)]);
        }
      }
      expect_near(part, want_part, relative, (name + what).c_str());
    }
  }
  EmulatedCounts counts;
};

}  // namespace terrace::test
