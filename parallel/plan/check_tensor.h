// Refuses requests that a model split over tensor ranks (tensor_parallel.h) cannot fulfil.
//
// Pure. Errors: RefusedSetting.
#pragma once

#include <terrace/parallel/plan/plan_request.h>

namespace terrace::planning {

void check_tensor(const Model& model, const PlanRequest& request);

}  // namespace terrace::planning
