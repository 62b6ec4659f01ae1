// The report's pictures, as SVG text. Colours come from the page's style sheet, so that light and dark both work.
//
// Threads: any. Errors: none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <terrace/examples/terrace/plan/trace_window.h>
#include <terrace/examples/terrace/report/run_steps.h>

namespace terrace::cli {

std::string loss_chart(const std::vector<StepPoint>& points);
// A chart of one number of each step. `name` includes the unit. Empty if no step has the number.
std::string number_chart(const std::vector<StepPoint>& points, const std::string& name, double StepMetrics::*number);
std::string stall_chart(const std::vector<StepPoint>& points);
std::string tier_chart(const TraceWindow& window);
std::string lane_chart(const TraceWindow& window);

}  // namespace terrace::cli
