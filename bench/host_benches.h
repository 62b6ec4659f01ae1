// Benches of the host (memory, computing, updates) and of the link to a device.
//
// Owner, threads, errors: as Bench.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>

namespace terrace::bench {

std::unique_ptr<Bench> make_ram_bench();
std::unique_ptr<Bench> make_compute_bench();
std::unique_ptr<Bench> make_optimizer_bench();
std::unique_ptr<Bench> make_pcie_bench();

}  // namespace terrace::bench
