// Passes for the asynchronous orders of pipelines, whose programs have several updates. with_norm_of_each_update() replaces
// with_norms(); with_updates_after_verdicts() replaces with_updates() if an update needs the norm of all ranks' gradients;
// with_versions() comes after the updates.
//
// Pure. Threads: any.
#pragma once

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/program.h>

namespace terrace::passes {

// Adds a norm for each update of a layer: right after the last backward of that update, or after the reduction of its gradient
// between the stage's data ranks.
Program with_norm_of_each_update(const Program& program, const StepMap& map);
// For updates clipped by the norm of all ranks' gradients: adds a verdict after the rank's last norm of each update. A layer's
// chunks are updated just before the next gradient overwrites the one that the update applies, or at the end of the program.
Program with_updates_after_verdicts(const Program& program, const StepMap& map);
// Makes layer actions read the weight version that the order requires. A version that later actions still read is copied before
// its update, and the copy is released after its last use.
Program with_versions(const Program& program, const StepMap& map);

}  // namespace terrace::passes
