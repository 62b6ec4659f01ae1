// The measured rates of a machine profile one by one, so that ranks can take over those of one of them.
//
// Owner:   the profile, which the places point into. Threads: a value. Errors: none.
#pragma once

#include <vector>

#include <terrace/core/machine.h>

namespace terrace {

// Of all that is in a profile's file, in the file's order: no texts, and no counts, which plan nothing.
std::vector<double*> rates_of(MachineProfile& profile);

}  // namespace terrace
