#include <terrace/bench/compute/stream_table.h>

namespace terrace::bench {

namespace baseline {
extern const StreamKernel kKernels[9];
}

const StreamKernel* stream_table() { return baseline::kKernels; }

}  // namespace terrace::bench
