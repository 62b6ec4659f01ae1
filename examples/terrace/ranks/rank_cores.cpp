#include <terrace/examples/terrace/ranks/rank_cores.h>

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/machine/cores.h>
#include <terrace/core/machine/machine.h>

namespace terrace::cli {

RankCores rank_cores(bool launched) {
  const auto own = static_cast<int>(machine::allowed_cores().size());
  const auto parents = launched ? static_cast<int>(machine::allowed_cores(::getppid()).size()) : own;
  return {.usable = read_topology().cores, .bound_to = own, .of_launcher = std::max(own, parents)};
}

int cores_of_rank(const RankCores& cores, std::int64_t ranks_of_machine) {
  if (cores.bound()) return cores.usable;
  return std::max(1, static_cast<int>(cores.usable / std::max<std::int64_t>(1, ranks_of_machine)));
}

std::optional<std::string> warning_of_binding(const RankCores& cores, std::int64_t ranks_of_machine) {
  const bool idle = cores.bound_to * ranks_of_machine < cores.of_launcher;
  if (!cores.bound() || (!idle && cores.bound_to > 1)) return std::nullopt;
  return fmt::format(
      "the launcher binds each rank to {} of {} cores{}\n  terrace launch binds none; for mpirun, give --bind-to none",
      cores.bound_to, cores.of_launcher,
      cores.bound_to == 1 ? ", where its computing waits for its own transfers" : ", and other cores stay idle");
}

}  // namespace terrace::cli
