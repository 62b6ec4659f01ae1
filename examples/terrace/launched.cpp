#include <terrace/examples/terrace/launched.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace terrace::cli {
namespace {

struct Names {
  const char *ranks, *rank, *local_ranks, *local_rank;
};
// The first launcher that says how many ranks there are is believed. Slurm's own variables stand in every batch script, so they
// count only where it started this process as a task, which it numbers.
constexpr Names kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
};

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

}  // namespace terrace::cli
