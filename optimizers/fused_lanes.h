// a · b + c, rounded once, where processors may have no instruction for it: the baseline's four lanes.
//
// Internal to optimizers/. Threads: any.
#pragma once

namespace terrace {

typedef float FourNumbers __attribute__((vector_size(16)));

// A call and not inlined: rules say `fused` so often that loops would be several times as long.
FourNumbers fused_in_fp64(FourNumbers a, FourNumbers b, FourNumbers c);

}  // namespace terrace
