// The measured rates of a machine profile one by one, so that all ranks can take those of one rank.
//
// Owner:   the profile, into which the pointers point. Threads: a value. Errors: none.
#pragma once

#include <vector>

#include <terrace/core/machine.h>

namespace terrace {

// All rates in a profile's file, in the file's order; not its texts and counts, which planning does not use.
std::vector<double*> rates_of(MachineProfile& profile);

}  // namespace terrace
