// What a GPU can do that nobody has measured yet, by its data sheet, so that a plan for it is not one for the CPU.
//
// Threads: any. Errors: none.
#pragma once

#include <terrace/core/device/cuda.h>
#include <terrace/core/machine/machine.h>

namespace terrace::profile {

// Sets the rates of the device and of its link. What the driver does not tell is that of a card of middle size, on PCIe 4.
void assume_rates_of(const GpuInfo& gpu, MachineProfile& profile);

}  // namespace terrace::profile
