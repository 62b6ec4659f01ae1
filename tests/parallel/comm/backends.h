// The backends that the contract suite runs on.
#pragma once

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include <terrace/parallel/comm/mpi/mpi.h>

#include <terrace/tests/parallel/comm/fake_gpus.h>
#include <terrace/tests/parallel/comm/rank_group.h>

namespace terrace::test {

struct Backend {
  std::string name;
  int ranks = 1;
  int ranks_per_machine = 0;  // ranks that count as one machine; 0: all ranks
  friend std::ostream& operator<<(std::ostream& out, const Backend& b) {
    out << b.name << " of " << b.ranks;
    return b.ranks_per_machine > 0 ? out << ", " << b.ranks_per_machine << " a machine" : out;
  }
};

inline int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

// Under mpirun the processes are the ranks, and only `mpi` is tested.
inline std::vector<Backend> backends() {
  if (const int ranks = number_in("OMPI_COMM_WORLD_SIZE")) return {{"mpi", ranks, number_in("TERRACE_TEST_RANKS_PER_MACHINE")}};
  return {{"self", 1},
          {"threads", 1},
          {"threads", 2},
          {"threads", 3},
          {"threads", 4},
          {"threads", 8},
          {"nccl", 1},
          {"nccl", 2},
          {"nccl", 3},
          {"nccl", 5},
          // Two machines; three with a smaller last one; many; three of one rank each.
          {"threads", 4, 2},
          {"threads", 7, 3},
          {"threads", 13, 2},
          {"threads", 3, 1},
          {"nccl", 4, 2},
          {"nccl", 5, 2}};
}
// The backends in which a rank can wait for another.
inline std::vector<Backend> backends_of_many() {
  auto all = backends();
  std::erase_if(all, [](const Backend& b) { return b.ranks == 1; });
  return all;
}

inline std::string name_of_backend(const testing::TestParamInfo<Backend>& of) {
  const auto name = of.param.name + std::to_string(of.param.ranks);
  const auto each = of.param.ranks_per_machine;
  return each > 0 ? name + "_" + std::to_string(each) + "_a_machine" : name;
}

inline Outcome on_ranks(const Backend& backend, CommunicatorOptions options, const std::function<void(Rank&)>& body) {
  options.ranks_per_machine = backend.ranks_per_machine;
  if (backend.name == "self") {
    ThreadPool pool(1);
    const auto device = make_cpu_device(pool);
    return {outcome_of(body, make_self_communicator(), *device)};
  }
  if (backend.name == "mpi") {
    ThreadPool pool(1);
    const auto device = make_cpu_device(pool);
    return {outcome_of(body, make_mpi_communicator(options), *device)};
  }
  if (backend.name == "nccl") return on_fake_gpus(backend.ranks, options, body);
  return on_threads(backend.ranks, options, body);
}

}  // namespace terrace::test
