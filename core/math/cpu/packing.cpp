#include <terrace/core/math/block8.h>
#include <terrace/core/math/cpu/ops.h>
#include <terrace/core/math/narrow.h>

namespace terrace::cpu {

void pack_block8(Compute, TensorView packed, TensorView x) {
  terrace::math::pack_block8(packed.data, x.dtype, x.data, x.elements() / math::kBlock8Elements);
}

void unpack_block8(Compute, TensorView y, TensorView packed) {
  terrace::math::unpack_block8(y.dtype, y.data, packed.data, y.elements() / math::kBlock8Elements);
}

void narrow_in_place(Compute, TensorView x) { terrace::math::narrow_in_place(x.data, x.elements()); }

}  // namespace terrace::cpu
