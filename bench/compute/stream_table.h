// All kernels of stream_kernels.h, for the best instruction set that this processor runs. Internal to bench/.
#pragma once

#include <terrace/bench/compute/stream_kernels.h>

namespace terrace::bench {

const StreamKernel* stream_table();  // of nine

}  // namespace terrace::bench
