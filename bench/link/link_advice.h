// What a GPU's link runs at while copies run, what it could run at, and what to do if that is more; and the same for the links
// of several GPUs that copy at once.
//
// Threads: any. Errors: none.
#pragma once

#include <string>
#include <vector>

#include <terrace/core/machine/pci.h>

namespace terrace::bench {

std::string describe(const machine::PciLink& link);  // "PCIe 4 with 16 lanes"; "unknown"

// `ends.now`: read while copies ran. `measured_bytes_s`: the faster direction; 0: not measured. Empty: nothing to do, or
// unknown.
std::vector<std::string> link_advice(const machine::PciEnds& ends, double measured_bytes_s);

// The medians of a GPU's copies alone, and while all GPUs copy.
struct GpuRates {
  std::string gpu;
  double alone_gb_per_s = 0, together_gb_per_s = 0;
};
// Names the GPUs whose own link is slow, and those that share something. Empty: neither. `op`: "upload_to_all".
std::vector<std::string> gpus_advice(const std::string& op, const std::vector<GpuRates>& gpus);

}  // namespace terrace::bench
