// What the planner chooses, unless it is given, and what it reckons with.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/examples/terrace/config/words.h>

namespace terrace::cli {

struct PlanConfig {
  Tiles tiles = Tiles::automatic;  // automatic: if no number of tiles is given, as few as fit; off: as given
  std::optional<Order> order;      // horizontal or vertical; empty: the faster one
  std::int64_t group = 0;          // micro-batches in a group of the vertical order; 0: all
  // Numbers of layers, or kAllLayers; empty: what is fastest.
  std::optional<std::uint32_t> recompute, activations, deferred_updates, early_updates;
  std::optional<UpdatePlace> update;            // empty: the fastest place
  std::optional<std::uint32_t> prefetch_depth;  // empty: chosen
  bool assumed_costs = false;                   // times come from the machine profile alone, as for another machine
  std::string machine_profile;                  // a profile file; empty: the saved one, or assumed rates
};

}  // namespace terrace::cli
