#include <terrace/examples/terrace/config/exit_codes.h>

#include <fmt/format.h>

namespace terrace::cli {
namespace {

constexpr ExitCode kExitCodes[] = {
    {Exit::ok, "done", "the command has finished; also if there was nothing to do", ""},
    {Exit::runtime, "run-time error", "something failed while the command ran: a disk, a file, memory, another rank",
     "remove the cause that the message names; a training run then continues with --resume auto"},
    {Exit::usage, "usage", "the command line or a file of settings is wrong, or another version of terrace wrote the run",
     "correct it and run again; use the version that wrote the run"},
    {Exit::does_not_fit, "does not fit", "the plan does not fit into the budgets, or the store onto its disk",
     "use a setting that the message names, or free the bytes that it names"},
    {Exit::hardware_missing, "hardware missing",
     "required hardware, a library or program for it, or the folder of a disk is absent",
     "terrace doctor says what is absent and how to mend it"},
    {Exit::corrupt, "stored state corrupt", "bytes that terrace stored are not as it wrote them",
     "do not resume over them; check the disk, and go back to a kept commit or an export"},
    {Exit::interrupted, "interrupted but resumable", "SIGINT, SIGTERM, SIGHUP or SIGUSR2 stopped the run after a commit",
     "--resume auto continues where the run stopped; terrace bench has printed its measurements so far"},
};

}  // namespace

Exit exit_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::failed: return Exit::runtime;
    case ErrorKind::refused: return Exit::usage;
    case ErrorKind::does_not_fit: return Exit::does_not_fit;
    case ErrorKind::missing: return Exit::hardware_missing;
    case ErrorKind::corrupt: return Exit::corrupt;
    case ErrorKind::interrupted: return Exit::interrupted;
  }
  return Exit::runtime;
}

std::span<const ExitCode> exit_codes() { return kExitCodes; }

std::string brief_exit_codes() {
  std::string out;
  for (const auto& exit : exit_codes())
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", static_cast<int>(exit.code), exit.brief);
  return out;
}

}  // namespace terrace::cli
