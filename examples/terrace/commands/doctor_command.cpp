#include <cstdio>

#include <CLI/CLI.hpp>

#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/doctor.h>

namespace terrace::cli {
namespace {

void add_doctor_options(CLI::App& sub, CommandLine& out) {
  sub.add_flag("--measure", out.measure, "measure this machine and save its profile");
}

Exit examine(const CommandLine& line) { return static_cast<Exit>(run_doctor(line.config, line.measure, stdout)); }

}  // namespace

Command doctor_command() {
  return {.name = "doctor",
          .help = "examine this machine, and print what to improve",
          .takes = {"device", "nvme-path", "machine-profile", "json", "threads"},
          .examples = {"terrace doctor", "terrace doctor --measure --nvme-path /mnt/disk"},
          .finds_device = true,
          .add_options = add_doctor_options,
          .run = examine};
}

}  // namespace terrace::cli
