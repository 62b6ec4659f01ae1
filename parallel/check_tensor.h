// Refuses requests that a model split over tensor ranks (tensor_parallel.h) cannot fulfil.
//
// Pure. Errors: Error(Exit::usage) with the setting, why, and what to give instead.
#pragma once

#include <terrace/parallel/plan_request.h>

namespace terrace {

void check_tensor(const Model& model, const PlanRequest& request);

}  // namespace terrace
