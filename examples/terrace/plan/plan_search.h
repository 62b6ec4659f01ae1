// terrace plan --search: prints the degrees of parallelism that train a model fastest on a given number of ranks, as
// search_plans() finds them (parallel/plan/search/search.h). What else the flags fix (budgets, schedule, micro-batch, recipe)
// stays.
//
// Threads: main's.
// Errors:  Error(ErrorKind::refused) if no product is legal; Error(ErrorKind::does_not_fit) if none fits, naming the one that
//          lacks least.
#pragma once

#include <cstdint>

#include <terrace/core/base/error.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/plan/plan_candidates.h>
#include <terrace/parallel/plan/search/search.h>

namespace terrace::cli {

Exit plan_search(const RunConfig& given, const RanksOfSearch& ranks, const MachineProfile& profile, std::int64_t shown,
                 SearchLimits limits = {});

}  // namespace terrace::cli
