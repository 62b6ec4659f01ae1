// The lines that `terrace plan` prints about the planner's choices and about several ranks.
//
// Threads: pure.
#pragma once

#include <string>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/plan/plan.h>

namespace terrace::cli {

// The chosen order and activations, and how much slower the alternatives are.
std::string choice_lines(const Plan& plan);
// How much a rank sends, and how fast all ranks compute.
std::string rank_lines(const RunConfig& config, const Model& model, const PlanRequest& request, const Plan& plan);
// The order in which gradients of several nodes are added; empty on one node.
std::string sum_line(const RunConfig& config, comm::SumOrder order);
std::uint64_t ranks_of_node(const RunConfig& config);
// What commits cost, and their share of the run's time.
std::string commit_line(const RunConfig& config, const Plan& p);
// With --sync-interval: what an average of the ranks' weights costs, and its share of a step.
std::string average_line(const Plan& plan);

}  // namespace terrace::cli
