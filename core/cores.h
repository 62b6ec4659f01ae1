// Cores of this machine, by the kernel's numbers: which of them hang on a NUMA node, and a thread that stays on some.
//
// Threads: any. Errors: none; a core that cannot be had costs the place, not the work.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

namespace terrace {

// Those that the calling thread may run on, ascending.
std::vector<int> allowed_cores();
// Of them, those of the node. Empty where that says nothing: no node (-1), one that the kernel does not name, or all of them.
std::vector<int> cores_of_numa_node(int node, const std::filesystem::path& root = "/");  // tests give another root for /sys

// Cores for work, and those that a thread may go back to behind it. No place: anywhere.
struct WorkPlace {
  std::vector<int> cores, anywhere;
};
std::shared_ptr<const WorkPlace> work_place(const std::vector<int>& cores);  // none of no cores
// Moves the calling thread there, if it is elsewhere. Returns where it was.
std::shared_ptr<const WorkPlace> go_to(std::shared_ptr<const WorkPlace> place);
// There and back again.
class WorkVisit {
 public:
  explicit WorkVisit(const std::shared_ptr<const WorkPlace>& place) : before_(go_to(place)) {}
  ~WorkVisit() { go_to(before_); }
  WorkVisit(const WorkVisit&) = delete;
  WorkVisit& operator=(const WorkVisit&) = delete;

 private:
  const std::shared_ptr<const WorkPlace> before_;
};

}  // namespace terrace
