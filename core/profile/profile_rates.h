// Gives access to each measured rate of a machine profile, so that all ranks can use the rates that one rank measured.
//
// Owner:   the pointers point into the profile. Threads: a value. Errors: none.
#pragma once

#include <vector>

#include <terrace/core/machine/machine.h>

namespace terrace::profile {

// All rates in a profile's file, in the file's order; not its texts and counts, which planning does not use.
std::vector<double*> rates_of(MachineProfile& profile);

}  // namespace terrace::profile
