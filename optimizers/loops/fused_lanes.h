// a · b + c, rounded once, for the baseline's four lanes: processors may have no instruction for it.
//
// Internal to optimizers/. Threads: any.
#pragma once

namespace terrace::rules {

typedef float FourNumbers __attribute__((vector_size(16)));

// Not inlined: rules use `fused` so often that loops would be several times as long.
FourNumbers fused_in_fp64(FourNumbers a, FourNumbers b, FourNumbers c);

}  // namespace terrace::rules
