// Decides whether a run of several ranks resumes. Each rank has its own store, and all of them must have the commit.
//
// Threads: the rank's; called by all ranks. Errors: Error(ErrorKind::corrupt) if some ranks have a commit that others lack.
#pragma once

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/examples/terrace/run/run_dir.h>

namespace terrace::cli {

// Sets dir.resume, the run ids (from the first rank) and dir.rank_paths (from every rank). If the run starts again, the rest of
// `dir` becomes that of a new run.
void agree_on_resume(RunDir& dir, const RunConfig& config, Team& team);

}  // namespace terrace::cli
