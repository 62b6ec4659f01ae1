// Refuses a request that cannot be planned before planning starts: settings that contradict each other or are not supported
// together.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) with settings that work instead.
#pragma once

#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/plan/plan_request.h>

namespace terrace::planning {

void check_request(const Model& model, const PlanRequest& request);

}  // namespace terrace::planning
