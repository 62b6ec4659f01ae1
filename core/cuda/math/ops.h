// The operations of core/math/math.h as kernel launches: their meaning is described there, and their operands are already
// checked. The headers of the families define them, as templates over the launcher (launcher.h), so that tests run them too.
// The .cu file of each family compiles it for CudaLauncher.
//
// Threads: the stream's issuing thread. The functions only issue work.
#pragma once

#include <terrace/core/cuda/math/activation.h>
#include <terrace/core/cuda/math/attention/attention.h>
#include <terrace/core/cuda/math/attention/attention_block.h>
#include <terrace/core/cuda/math/column_sums.h>
#include <terrace/core/cuda/math/cross_entropy.h>
#include <terrace/core/cuda/math/elementwise.h>
#include <terrace/core/cuda/math/embed.h>
#include <terrace/core/cuda/math/norm.h>
#include <terrace/core/cuda/math/packing.h>
#include <terrace/core/cuda/math/quantise.h>
#include <terrace/core/cuda/math/rotary.h>
#include <terrace/core/cuda/math/routing.h>
#include <terrace/core/cuda/math/score_rows.h>
#include <terrace/core/cuda/math/sums.h>
#include <terrace/core/math/math_call.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct AllOps : Activations<Launcher>,
                AttentionForward<Launcher>,
                AttentionGradient<Launcher>,
                AttentionBlocks<Launcher>,
                ColumnSums<Launcher>,
                Losses<Launcher>,
                Elementwise<Launcher>,
                Embeddings<Launcher>,
                Norms<Launcher>,
                Packing<Launcher>,
                Quantising<Launcher>,
                RotaryPositions<Launcher>,
                Experts<Launcher>,
                RowSoftmax<Launcher>,
                Sums<Launcher> {};

// Issues a call by the function of its name.
#define TERRACE_OPERATION(name, outputs)                                                           \
  template <class Launcher>                                                                        \
  void issue(const Launcher& launcher, const math::CallOf<&Math::name>& call) {                    \
    call.apply([&](const auto&... arguments) { AllOps<Launcher>::name(launcher, arguments...); }); \
  }
#include <terrace/core/math/operation_list.inl>

}  // namespace terrace::cuda::ops
