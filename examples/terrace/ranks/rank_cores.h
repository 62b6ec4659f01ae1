// How many cores a rank has. Ranks of one machine share its cores, unless their launcher has given each its own.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace terrace::cli {

struct RankCores {
  int usable = 1;       // by this rank: by its binding and by the quota of its container
  int bound_to = 1;     // by its binding alone
  int of_launcher = 1;  // on which its launcher may run; as many as bound_to: the launcher has not bound the rank
  [[nodiscard]] bool bound() const { return bound_to < of_launcher; }
};
// Of a process whose parent is its launcher, or of a rank that is a thread of this process.
RankCores rank_cores(bool launched);
int cores_of_rank(const RankCores& cores, std::int64_t ranks_of_machine);
// What to say of a binding by which a rank waits for itself, or which leaves cores idle.
std::optional<std::string> warning_of_binding(const RankCores& cores, std::int64_t ranks_of_machine);

}  // namespace terrace::cli
