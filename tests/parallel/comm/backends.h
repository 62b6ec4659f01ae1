// The backends that the contract suite runs on.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "rank_group.h"

namespace terrace::test {

struct Backend {
  std::string name;
  int ranks = 1;
  friend std::ostream& operator<<(std::ostream& out, const Backend& b) { return out << b.name << " of " << b.ranks; }
};

inline std::vector<Backend> backends() {
  return {{"self", 1}, {"threads", 1}, {"threads", 2}, {"threads", 3}, {"threads", 4}, {"threads", 8}};
}
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
  return on_threads(backend.ranks, options, body);
}

}  // namespace terrace::test
