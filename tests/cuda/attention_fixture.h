// What the tests of attention's kernels share: names of shapes, places of results, the CPU's forward.
#pragma once

#include <string>

#include <terrace/tests/math/math_fixture.h>
#include <terrace/tests/support/emulated_lane.h>

#include "attention_oracle.h"

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
  EmulatedCounts counts;
};

}  // namespace terrace::test
