#include <terrace/examples/terrace/base/launched.h>

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>

namespace terrace::cli {
namespace {

struct Names {
  const char *number, *own;
};
// The first launcher that gives a number of ranks counts. Every Slurm batch script has Slurm's own variables, so they count
// only for a process that Slurm started as a numbered task.
constexpr Names kRanksWords[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_RANK"},  // also of PALS and Intel MPI, and of the PMI of Slurm and Flux
    {"PMI_SIZE", "PALS_RANKID"},
    {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
};
// The variables that say which ranks are on this machine. PMI itself has none.
constexpr Names kLocalRanks[] = {
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"PMI_LOCAL_SIZE", "PMI_LOCAL_RANK"},
    {"PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"},
    {"SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
};

constexpr auto kFirstRankSpeaks = std::chrono::seconds(3);  // mpirun ends the other ranks within two seconds

// The leading number: Slurm writes "4(x2)" for four tasks on each of two nodes.
std::optional<int> number(const char* text) {
  int value = 0;
  if (!text || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::pair<int, int>> pair_of(const Names& names, const Environment& variable) {
  const auto all = number(variable(names.number)), own = number(variable(names.own));
  if (!all || !own) return std::nullopt;
  return std::pair{*all, *own};
}

// How many ranks are on this machine, and which of them this one is. Variables of an enclosing job are ignored if their numbers
// do not fit.
std::pair<int, int> local_of(const Launched& place, const Environment& variable) {
  const auto fits = [&](int all, int own) { return own >= 0 && own < all && all <= place.ranks; };
  for (const auto& names : kLocalRanks)
    if (const auto local = pair_of(names, variable); local && fits(local->first, local->second)) return *local;
  // Flux gives the number of machines; each has the same number of ranks, or one less.
  const auto machines = number(variable("FLUX_JOB_NNODES")), own = number(variable("FLUX_TASK_LOCAL_ID"));
  if (machines && own && *machines > 0)
    if (const int all = (place.ranks + *machines - 1) / *machines; fits(all, *own)) return {all, *own};
  return {place.ranks, place.rank};
}

// Whether nothing listens at this machine's address in "1310720.0;tcp4://127.0.0.1:54589". False for other addresses, which
// cannot be checked. The kernel is asked, because mpirun complains of a connection that only tests whether it is there.
bool has_ended(const char* uri) {
  constexpr const char* kHere = "tcp4://127.0.0.1:";
  const char* const here = std::strstr(uri, kHere);
  const auto port = here ? number(here + std::strlen(kHere)) : std::nullopt;
  std::ifstream sockets("/proc/net/tcp");
  if (!port || !sockets) return false;
  const auto of_port = fmt::format(":{:04X}", *port);
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream words(line);
    std::string slot, local, remote, state;
    words >> slot >> local >> remote >> state;
    if (state == "0A" && local.ends_with(of_port)) return false;  // TCP_LISTEN
  }
  return true;
}

}  // namespace

const char* own_environment(const char* name) { return std::getenv(name); }

std::optional<Launched> launched(const Environment& variable) {
  for (const auto& names : kRanksWords) {
    const auto found = pair_of(names, variable);
    if (!found) continue;
    if (found->first <= 1) return std::nullopt;
    Launched place{.ranks = found->first, .rank = found->second, .said_by = names.number};
    std::tie(place.local_ranks, place.local_rank) = local_of(place, variable);
    return place;
  }
  return std::nullopt;
}

std::string describe_left_over(const Environment& variable) {
  std::string text = "if no launcher started this process, these variables are left over: env";
  for (const auto& names : kRanksWords)
    if (pair_of(names, variable)) text += fmt::format(" -u {} -u {}", names.number, names.own);
  return text + " terrace …";
}

void demand_launcher(const Launched& place, const Environment& variable) {
  for (const auto* const server : {"PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"})
    if (const auto* const uri = variable(server); uri && has_ended(uri))
      throw base::Refused(
          fmt::format("{} says that there are {} ranks, but the mpirun that said so has ended\n  start ranks with "
                      "mpirun or terrace launch; {}",
                      place.said_by, place.ranks, describe_left_over(variable)));
}

void demand_alone(const Environment& variable) {
  const auto refuse = [](const std::string& what, const char* name) {
    throw base::Refused(
        fmt::format("{}; if this process was not started so, the variable is left over: env -u {} terrace …", what, name));
  };
  if (const auto found = pair_of({"WORLD_SIZE", "RANK"}, variable);
      variable("TORCHELASTIC_RUN_ID") && found && found->first > 1)
    refuse(
        fmt::format("torchrun started this process as rank {} of {}, and the ranks of terrace meet through MPI\n  start them "
                    "with terrace launch -n {}, mpirun or srun",
                    found->second, found->first, found->first),
        "TORCHELASTIC_RUN_ID");
  const auto rank = number(variable("PALS_RANKID"));
  if (rank && (*rank > 0 || number(variable("PALS_LOCAL_SIZE")).value_or(1) > 1))
    refuse(fmt::format("PALS started this process as rank {}, and no variable has the number of ranks\n  give it with mpiexec "
                       "--env PMI_SIZE=N",
                       *rank),
           "PALS_RANKID");
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
