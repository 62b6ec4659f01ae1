// Proves that the members of every set of ranks issue the same collectives in the same order: operation, bytes, reduction and
// root. (Messages between two ranks are proved by check_messages.h.)
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) with the first collectives that differ.
#pragma once

#include <span>

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/program.h>

namespace terrace::passes {

struct RankProgram {
  const StepMap& map;
  const Program& program;
};
// `ranks`: any ranks of one run. Of each set, only the given members are compared.
void check_collectives(std::span<const RankProgram> ranks);

}  // namespace terrace::passes
