// Compares eviction policies on one sequence of accesses: how many find their chunk in the tier, and what must move for the
// others.
//
// Owner, threads: as Bench. Errors: Error(ErrorKind::does_not_fit) for an action that needs more than the whole tier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <terrace/bench/bench.h>
#include <terrace/bench/disk/access_trace.h>

namespace terrace::bench {

struct Replayed {
  std::uint64_t accesses = 0, hits = 0;           // of accesses that need content; overwrites are not counted
  std::uint64_t read_bytes = 0, write_bytes = 0;  // from and to the tier below
};

// The known eviction policies, by name.
inline constexpr std::string_view kPolicies[] = {"lru", "belady"};
// Replays the trace twice, like a repeated step, and counts only the second time. Chunks are placed without gaps. The chunks of
// an action stay in the tier until it ends; changed content is written to the tier below when it leaves.
Replayed replay(const AccessTrace& trace, Tier tier, std::uint64_t capacity_bytes, std::string_view policy);

// `of_plan`: returns the accesses of a planned step; called if no recorded trace is given.
std::unique_ptr<Bench> make_residency_bench(std::function<AccessTrace()> of_plan);

}  // namespace terrace::bench
