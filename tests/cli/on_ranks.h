// What tests of runs on several ranks share: the words that start them, as threads and as processes.
#pragma once

#include <algorithm>
#include <string>

#include "cli_test.h"

namespace terrace::test {

class Ranks : public Cli {
 protected:
  // Eight micro-batches a step for every degree that divides them, six for three.
  [[nodiscard]] Words on(int ranks, int zero, const std::string& run, const Words& more = {}) const {
    Words words{"--grad-accumulation",
                std::to_string(8 / ranks),
                "--zero",
                std::to_string(zero),
                "--canonical-reduction",
                "--out-dir",
                run};
    if (std::ranges::find(more, "--steps") == more.end()) words.insert(words.end(), {"--steps", "5"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  [[nodiscard]] Words threads(int ranks, int zero, const std::string& run, const Words& more = {}) const {
    auto words = on(ranks, zero, run, more);
    words.insert(words.end(), {"--dp", std::to_string(ranks)});
    return words;
  }
#ifdef TERRACE_MPIRUN
  [[nodiscard]] Launch processes(int ranks, int zero, const std::string& run, const Words& more = {}, int pp = 1) const {
    Words words{"launch", "-n", std::to_string(ranks * pp), "--mpirun", TERRACE_MPIRUN, "--"};
    const auto train = tiny("train", on(ranks, zero, run, more));
    words.insert(words.end(), train.begin(), train.end());
    auto launched = launch(words);
    launched.environment["ASAN_OPTIONS"] = "detect_leaks=0";  // Open MPI leaves some memory to the end of the process
    return launched;
  }
  // Two ranks, each with its own words.
  [[nodiscard]] Launch one_by_one(const Words& first, const Words& second) const {
    auto started = launch(Words{"--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-n", "1", TERRACE_PROGRAM} +
                          first + Words{":", "-n", "1", TERRACE_PROGRAM} + second);
    started.program = TERRACE_MPIRUN;
    started.environment["ASAN_OPTIONS"] = "detect_leaks=0";
    return started;
  }
#endif
};

}  // namespace terrace::test
