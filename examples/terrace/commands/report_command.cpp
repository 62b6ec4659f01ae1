// terrace report: the page of one run, of several runs, or of a bench.
#include <cstdio>
#include <filesystem>

#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/report/report.h>
#include <terrace/examples/terrace/report/report_bench.h>
#include <terrace/examples/terrace/report/report_compare.h>

namespace terrace::cli {

Exit report_command(const CommandLine& line) {
  const std::vector<std::filesystem::path> of(line.positional.begin(), line.positional.end());
  const auto page = of.size() > 1                               ? write_comparison(of)
                    : std::filesystem::is_directory(of.front()) ? write_report(of.front())
                                                                : write_bench_report(of.front());
  std::puts(page.c_str());
  return Exit::ok;
}

}  // namespace terrace::cli
