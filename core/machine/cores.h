// Cores of this machine, numbered as in the kernel: which belong to a NUMA node, and how to keep a thread on some of them.
//
// Threads: any. Errors: none; if a thread cannot be moved to a core, it works elsewhere.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

namespace terrace::machine {

// The cores on which a process may run, ascending; 0: the calling thread. Empty: there is no such process.
std::vector<int> allowed_cores(int process = 0);
// The allowed cores of the node. Empty if no node is given (-1), the kernel does not know the node, or it has all allowed
// cores.
std::vector<int> cores_of_numa_node(int node, const std::filesystem::path& root = "/");  // tests give another root for /sys

// The cores for work, and the cores to which a thread returns afterwards. Null: no restriction.
struct WorkPlace {
  std::vector<int> cores, anywhere;
};
std::shared_ptr<const WorkPlace> work_place(const std::vector<int>& cores);  // null if `cores` is empty
// Moves the calling thread to `place`, if it is not already there. Returns its previous place.
std::shared_ptr<const WorkPlace> go_to(std::shared_ptr<const WorkPlace> place);
// Moves the calling thread to a place for a scope, then back.
class WorkVisit {
 public:
  explicit WorkVisit(const std::shared_ptr<const WorkPlace>& place) : before_(go_to(place)) {}
  ~WorkVisit() { go_to(before_); }
  WorkVisit(const WorkVisit&) = delete;
  WorkVisit& operator=(const WorkVisit&) = delete;

 private:
  const std::shared_ptr<const WorkPlace> before_;
};

}  // namespace terrace::machine
