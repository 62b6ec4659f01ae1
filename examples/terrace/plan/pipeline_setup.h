// Turns --pp, --schedule, --virtual-stages and --stage-layers into the pipeline of a plan request.
//
// Threads: any. Errors: Error(ErrorKind::refused) for settings that are impossible, with the nearest possible ones.
#pragma once

#include <string>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/plan/pipeline_plans.h>

namespace terrace::cli {

// Does nothing with --pp 1, nor with --schedule auto. The stages are those of --stage-layers, or else as even as the layers'
// costs on this machine allow.
void set_pipeline(PlanRequest& request, const RunConfig& config, const Model& model, const MachineProfile& profile);

// Returns the schedule that --schedule names, with --virtual-stages and --drain-interval, or the one in its file; not for
// `auto`.
pipeline::Schedule schedule_of(const RunConfig& config);

bool searches_schedule(const RunConfig& config);  // with --schedule auto
// The plans of all ranks, after set_pipeline(). With --schedule auto, sets request.pipeline to the fastest schedule whose ranks
// fit into their budgets. Error(ErrorKind::does_not_fit) if there is none, or if the ranks of the given one do not fit.
planning::FoundSchedule plans_of_ranks(PlanRequest& request, const RunConfig& config, const Model& model,
                                       const MachineProfile& profile, ThreadPool& pool);

// Writes a found schedule as text: its name, stages and tasks. All ranks of a run take this text, and the run directory keeps
// it.
std::string found_to_text(const std::string& name, const pipeline::Pipeline& pipeline);
// Sets request.pipeline from such a text. Returns the schedule's name.
std::string take_found(PlanRequest& request, const Model& model, const std::string& text);
// Returns the text of the resumed run; empty if it has none, or if the text is for other numbers of ranks or micro-batches.
std::string found_by_run(const RunConfig& config);
inline constexpr const char* kScheduleFile = "schedule.txt";  // of a run with --schedule auto

// "3,4,4": how many layers each stage has, as --stage-layers takes it.
std::string stage_layers(const pipeline::Pipeline& pipeline);
// Returns the stages of the resumed run if it has the same pipeline. A resumed run keeps its stages, because each rank's disk
// has the state of its stages.
std::string stage_layers_of_run(const RunConfig& config);

}  // namespace terrace::cli
