// What an OptimizerState must know of the last commit before it can continue: the first line of the commit's payload. The
// caller's payload follows it.
//
// Threads: any; pure. Errors: Error(ErrorKind::refused) for the commit of another optimizer or recipe, or of another program.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::rules {

struct CommittedFacts {
  std::string optimizer, recipe;
  std::uint64_t chunk_elements = 0;
  std::uint64_t updates = 0;  // applied steps
  std::uint64_t seed = 0;
};

std::string with_facts(const CommittedFacts& facts, const std::string& payload);
// The facts of a commit; optimizer and recipe must be those of `wanted`. `store` is named in messages.
CommittedFacts resumed_facts(const CommittedFacts& wanted, const std::string& committed, const std::string& store,
                             std::string& payload);

}  // namespace terrace::rules
