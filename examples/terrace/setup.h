// From what the user said to what the engine needs: model, data, budgets, machine profile, plan request. Shared by the
// commands train, plan and generate.
//
// Threads: any. Errors: Error(Exit::usage) for configurations that cannot be; Error(Exit::hardware_missing) for absent devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <terrace/core/machine.h>
#include <terrace/examples/lm/model_config.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/optimizers/loss_scale.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/compute.h>
#include <terrace/parallel/plan.h>

namespace terrace::cli {

lm::ModelConfig model_config(const RunConfig& config);
// `auto`: the device's usual_device_bytes(); the host's 85 % of what is available, beside the CPU device of half of it.
Budget budgets(const RunConfig& config);
std::uint64_t ranks_of_machine(const RunConfig& config);  // that share its memory and disks
PlanRequest plan_request(const RunConfig& config);
std::uint64_t commit_interval(const RunConfig& config);  // steps; 0: at the end only
// One: nothing can be committed while the run goes on, because a write would go over what the last commit names.
std::uint32_t generations(const RunConfig& config);
WeightRange first_weights(const RunConfig& config, const Model& model);  // random, or of the safetensors file
// Of settings that are easily given by mistake: a safetensors file with more than the model, as one with more layers has; a
// recipe whose formats round away what the optimizer adds up.
std::vector<std::string> warnings_of(const RunConfig& config, const Model& model);
Schedule schedule(const RunConfig& config);
LossScale loss_scale(const RunConfig& config);  // as it begins
std::unique_ptr<Optimizer> optimizer_of(const RunConfig& config);
std::unique_ptr<Optimizer> optimizer_of(const RunConfig& config, const Device& device);  // updates on the device as well
// What the plan must know of the optimizer and of the groups of parameters.
void set_optimizer(PlanRequest& request, const RunConfig& config);
// The plan of a request. Each kind of layer is timed on this machine first, so that the plan's times are its own, unless
// config.assumed_costs; what the plan decides does not depend on it. `trace` takes a steady step of it.
Plan make_plan(const RunConfig& config, const Model& model, const PlanRequest& request, const MachineProfile& profile,
               Trace* trace = nullptr);

// Where a run's chunks are: <nvme-path>/terrace-<hash of the run directory>, or <out-dir>/store without a disk tier.
ChunkStore::Options store_options(const RunConfig& config);

nlohmann::json to_json(const Plan& plan);
// What does not fit, in the words of the command line; Exit::does_not_fit.
Error refusal_error(const Plan& plan);

}  // namespace terrace::cli
