#include <terrace/examples/terrace/launched.h>

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

namespace terrace::cli {
namespace {

struct Names {
  const char *ranks, *rank, *local_ranks, *local_rank;
};
// The first launcher that gives a number of ranks counts. Every Slurm batch script has Slurm's own variables, so they count
// only for a process that Slurm started as a numbered task.
constexpr Names kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
};

constexpr auto kFirstRankSpeaks = std::chrono::seconds(3);  // mpirun ends the other ranks within two

// The leading number: Slurm writes "4(x2)" for four tasks on each of two nodes.
std::optional<int> number(const char* text) {
  int value = 0;
  if (!text || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{}) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Launched> launched(const std::function<const char*(const char*)>& variable) {
  for (const auto& names : kLaunchers) {
    const auto ranks = number(variable(names.ranks)), rank = number(variable(names.rank));
    if (!ranks || !rank) continue;
    if (*ranks <= 1) return std::nullopt;
    return Launched{*ranks, *rank, number(variable(names.local_ranks)).value_or(*ranks),
                    number(variable(names.local_rank)).value_or(*rank)};
  }
  return std::nullopt;
}

std::optional<Launched> launched() {
  return launched([](const char* name) -> const char* { return std::getenv(name); });
}

bool output_is_terminal() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  if (!std::getenv("OMPI_COMM_WORLD_RANK") && !std::getenv("PMI_RANK")) return true;
  std::error_code error;
  const auto of_parent = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", ::getppid(), STDOUT_FILENO), error);
  return of_parent.string().starts_with("/dev/pts/") || of_parent.string().starts_with("/dev/tty");
}

void let_first_rank_speak() {
  const auto place = launched();
  if (place && place->rank > 0 && !std::getenv(kUnderLaunch)) std::this_thread::sleep_for(kFirstRankSpeaks);
}

}  // namespace terrace::cli
