// The backends that the contract suite runs on.
#pragma once

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include <terrace/parallel/comm/mpi.h>

#include "fake_gpus.h"
#include "rank_group.h"

namespace terrace::test {

struct Backend {
  std::string name;
  int ranks = 1;
  friend std::ostream& operator<<(std::ostream& out, const Backend& b) { return out << b.name << " of " << b.ranks; }
};

inline int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

// Under mpirun the processes are the ranks, and there is nothing else to test.
inline std::vector<Backend> backends() {
  if (const int ranks = number_in("OMPI_COMM_WORLD_SIZE")) return {{"mpi", ranks}};
  return {{"self", 1},    {"threads", 1}, {"threads", 2}, {"threads", 3}, {"threads", 4},
          {"threads", 8}, {"nccl", 1},    {"nccl", 2},    {"nccl", 3},    {"nccl", 5}};
}
// So many ranks play one machine; 0: all of them are on this one.
inline int ranks_per_machine() { return number_in("TERRACE_TEST_RANKS_PER_MACHINE"); }
// Those in which a rank can wait for another.
inline std::vector<Backend> backends_of_many() {
  auto all = backends();
  std::erase_if(all, [](const Backend& b) { return b.ranks == 1; });
  return all;
}

inline std::string name_of_backend(const testing::TestParamInfo<Backend>& of) {
  return of.param.name + std::to_string(of.param.ranks);
}

inline Outcome on_ranks(const Backend& backend, const CommunicatorOptions& options, const std::function<void(Rank&)>& body) {
  if (backend.name == "self") {
    ThreadPool pool(1);
    const auto device = make_cpu_device(pool);
    return {outcome_of(body, make_self_communicator(), *device)};
  }
  if (backend.name == "mpi") {
    ThreadPool pool(1);
    const auto device = make_cpu_device(pool);
    return {outcome_of(body, make_mpi_communicator({options, ranks_per_machine()}), *device)};
  }
  if (backend.name == "nccl") return on_fake_gpus(backend.ranks, options, body);
  return on_threads(backend.ranks, options, body);
}

}  // namespace terrace::test
