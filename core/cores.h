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
// The calling thread runs on these from here on.
void stay_on(const std::vector<int>& cores);

// Cores for work, and those that a thread may go back to behind it.
struct WorkPlace {
  std::vector<int> cores, anywhere;
};
// Moves the calling thread there, if it is elsewhere; null: anywhere. Returns where it was.
std::shared_ptr<const WorkPlace> go_to(std::shared_ptr<const WorkPlace> place);

}  // namespace terrace
