// Passes of the asynchronous orders of pipelines, whose programs have several updates. In place of with_norms(), and of
// with_updates() where all ranks decide of an update; with_versions() behind the updates.
//
// Pure. Threads: any.
#pragma once

#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// A stage's gradient is its own affair: a norm right behind the last backward of each of a layer's updates, or behind the
// reduction of that between the stage's data ranks.
Program with_norm_of_each_update(const Program& program, const StepMap& map);
// Updates that are clipped by the norm of all ranks' gradients: a verdict behind the rank's last norm of each; a layer's chunks
// are updated when the next gradient wants the place of the one they apply, or the program ends.
Program with_updates_after_verdicts(const Program& program, const StepMap& map);
// Layer actions read the version of the weights that the order wants. What a later one still reads is kept before it is
// updated, and released behind its last use.
Program with_versions(const Program& program, const StepMap& map);

}  // namespace terrace
