// Reports an invalid index that a kernel was given. The kernel accesses nothing outside its tensors, writes NaN where a result
// is missing, and stores one of the invalid indices in a word of host memory, which the host reads when the kernel has ended.
//
// Threads: any number of kernel threads may report; each writes the whole word, and one of the reports remains. The host reads
//          it after the kernel.
#pragma once

#include <cstdint>

#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

using FaultWord = std::uint64_t;  // 0: none

TERRACE_HD void report_fault(FaultWord* fault, std::int64_t at, std::int32_t value) {
  *fault = static_cast<FaultWord>(at + 1) << 32 | static_cast<std::uint32_t>(value);
}
inline std::int64_t fault_place(FaultWord word) { return static_cast<std::int64_t>(word >> 32) - 1; }
inline std::int32_t fault_value(FaultWord word) { return static_cast<std::int32_t>(word & 0xffffffffU); }

}  // namespace terrace::cuda
