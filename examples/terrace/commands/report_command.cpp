// terrace report: the page of one run, of several runs, or of a bench.
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/text_options.h>
#include <terrace/examples/terrace/report/report.h>
#include <terrace/examples/terrace/report/report_bench.h>
#include <terrace/examples/terrace/report/report_compare.h>

namespace terrace::cli {
namespace {

Exit run_report(const CommandLine& line) {
  const std::vector<std::filesystem::path> of(line.positional.begin(), line.positional.end());
  const auto page = of.size() > 1                               ? write_comparison(of)
                    : std::filesystem::is_directory(of.front()) ? write_report(of.front())
                                                                : write_bench_report(of.front());
  std::puts(page.c_str());
  return Exit::ok;
}

// One word may be a file that `terrace bench --json` wrote.
void check_report(const CommandLine& line) {
  std::error_code error;
  if (line.positional.size() == 1 && std::filesystem::is_regular_file(line.positional.front(), error)) return;
  check_directories(line, "the directory of a run", 0);
}

}  // namespace

Command report_command() {
  return {.name = "report",
          .help = "write the report.html of a run, or a page that compares several runs or shows the JSON of a bench",
          .takes = {"json"},
          .positional = "RUN...",
          .examples = {"terrace report runs/mine", "terrace report runs/one runs/other", "terrace report all.json"},
          .check = check_report,
          .run = run_report};
}

}  // namespace terrace::cli
