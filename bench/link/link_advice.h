// What a GPU's link runs at while copies run, what it could run at, and what to do if that is more.
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

}  // namespace terrace::bench
