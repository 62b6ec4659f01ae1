// What cannot be planned, said before anything is: settings that contradict each other, or that nothing here can do together.
//
// Pure. Threads: any. Errors: Error(Exit::usage) with what would do instead.
#pragma once

#include <terrace/parallel/plan.h>

namespace terrace {

void check_request(const Model& model, const PlanRequest& request);

}  // namespace terrace
