// What `terrace plan` says on the screen of the planner's choices and of many ranks.
//
// Threads: pure.
#pragma once

#include <string>

#include <terrace/examples/terrace/run_config.h>
#include <terrace/parallel/plan.h>

namespace terrace::cli {

// What was chosen, and what it is faster than.
std::string choice_lines(const Plan& plan);
// What a rank sends, and how much of the model all of them compute in a second.
std::string rank_lines(const RunConfig& config, const Model& model, const PlanRequest& request, const Plan& plan);
// What an average of the ranks' weights takes, where there are any, and what of it was counted in the step.
std::string average_line(const Plan& plan);

}  // namespace terrace::cli
