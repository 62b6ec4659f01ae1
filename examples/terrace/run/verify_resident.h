// --verify-resident: repeats the first steps of a finished run with everything in memory. Every loss must be the same number.
//
// Threads: the rank's, of a run with one rank. Errors: Error(ErrorKind::refused) if this machine's results differ in bits from
// those of the run's machine; Error if nothing can be compared, or if a loss differs.
#pragma once

#include <terrace/core/device/device.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/ranks/agreed_plan.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/screen.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::cli {

void verify_resident(const RunConfig& config, const AgreedPlan& agreed, RunData& data, Device& device,
                     const Optimizer& optimizer, const RunDir& dir, Screen& screen);

}  // namespace terrace::cli
