// Turns the configuration into what the engine needs: model, data, budgets, machine profile, plan request. Used by train, plan
// and generate.
//
// Threads: any. Errors: Error(ErrorKind::refused) for impossible configurations; Error(ErrorKind::missing) for absent devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/lm/models/model_config.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/optimizers/loss_scale.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/mesh/tensor_parallel.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/run/compute.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {

// dp 0 counts as 1: it is not known yet.
Degrees degrees_of(const RunConfig& config);
Mesh mesh_of(const RunConfig& config);
lm::ModelConfig model_config(const RunConfig& config);
// Whether the store keeps large parts of a layer apart (memory/layout.h).
bool units_apart(const RunConfig& config);
// `auto` is usual_device_bytes() for the device. For the host it is 85 % of the available memory, or with the CPU device 85 %
// of half of it.
Budget budgets(const RunConfig& config);
// What `auto` budgets divide: the available memory of this machine or its cgroup, less what the program itself needs: its code,
// the libraries' buffers, threads and I/O buffers, as measured on small runs (docs/internals/residency.md).
std::uint64_t memory_for_budgets(const RunConfig& config);
std::uint64_t ranks_of_machine(const RunConfig& config);  // the ranks that share this machine's memory and disks
PlanRequest plan_request(const RunConfig& config);
std::uint64_t commit_interval(const RunConfig& config);  // in steps; 0: only at the end
// How many generations of the state are on disk. With one, nothing can be committed before the end of the run, because writes
// would overwrite the last commit.
std::uint32_t generations(const RunConfig& config);
// Warnings about settings that are easily given by mistake. Without a model: a warm-up that is longer than the run. With a
// model also: values that the safetensors file of --init-from lacks, and a recipe whose formats round away what the optimizer
// accumulates.
std::vector<std::string> warnings_of(const RunConfig& config);
std::vector<std::string> warnings_of(const RunConfig& config, const Model& model);
Schedule schedule(const RunConfig& config);
LossScale loss_scale(const RunConfig& config);  // at the first step
std::unique_ptr<Optimizer> optimizer_of(const RunConfig& config);
std::unique_ptr<Optimizer> optimizer_of(const RunConfig& config, const Device& device);  // can also update on the device
// Sets what the plan needs to know about the optimizer and the parameter groups.
void set_optimizer(PlanRequest& request, const RunConfig& config);
// The plan of a request. Unless config.assumed_costs is set, each kind of layer is timed on this machine, and the plan's times
// use these measurements; its decisions do not. `trace` receives a simulated steady step.
Plan make_plan(const RunConfig& config, const Model& model, const PlanRequest& request, const MachineProfile& profile,
               Trace* trace = nullptr);

// Where a run's chunks are: <nvme-path>/terrace-<hash of the run directory>, or <out-dir>/store without a disk tier.
ChunkStore::Options store_options(const RunConfig& config);

nlohmann::json to_json(const RunConfig& config, const Plan& plan);

}  // namespace terrace::cli
