// Eviction policies on one sequence of accesses: how many find their chunk in the tier, and what has to move for the others.
//
// Owner, threads: as Bench. Errors: Error(Exit::does_not_fit) for an action that needs more than the whole tier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <terrace/bench/access_trace.h>
#include <terrace/bench/bench.h>

namespace terrace::bench {

struct Replayed {
  std::uint64_t accesses = 0, hits = 0;           // of content that is needed; what is only overwritten is neither
  std::uint64_t read_bytes = 0, write_bytes = 0;  // from and to the tier below
};

// The eviction policies that there are, by name.
inline constexpr std::string_view kPolicies[] = {"lru", "belady"};
// Plays the trace twice, as a step that repeats, and counts the second time. Chunks are placed without gaps; what an action
// uses stays until its end; changed content is written down when it leaves.
Replayed replay(const AccessTrace& trace, Tier tier, std::uint64_t capacity_bytes, std::string_view policy);

// `of_plan`: the accesses of a planned step, asked for when no recorded trace is given.
std::unique_ptr<Bench> make_residency_bench(std::function<AccessTrace()> of_plan);

}  // namespace terrace::bench
