// Over how many ranks a run is divided, and how they share the work.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/examples/terrace/config/words.h>

namespace terrace::cli {

struct ParallelConfig {
  // ranks that train on different micro-batches of a step
  std::int64_t dp = 0;           // 0: as many as were launched
  std::int64_t zero = 0;         // the ZeRO stage
  std::int64_t shard_group = 0;  // ranks that share one copy of the state; 0: all
  bool canonical_reduction = false;
  comm::SumOrder sum_order = comm::SumOrder::machines;
  std::int64_t ranks_per_machine = 0;  // 0: as the ranks really are on machines
  Travel compress_gradients = Travel::whole, compress_weights = Travel::whole;
  std::int64_t sync_interval = 1;  // steps between averages of the weights; 1: no averages, gradients are reduced in each step
  // ranks that hold different layers
  std::int64_t pp = 1;
  std::string schedule = "1f1b";     // a name in pipeline/orders.h, a file, or auto
  std::int64_t virtual_stages = 0;   // stages on each rank; 0: the schedule's usual number
  std::int64_t drain_interval = 10;  // steps between drains of an asynchronous schedule
  std::string stage_layers;          // "3,4,4"; empty: balanced
  // ranks that have a part of each layer
  std::int64_t tp = 1;
  TensorMode tp_mode = TensorMode::line;
  std::int64_t tp_depth = 1;    // number of grids, for 2.5d
  bool sp = false;              // between layers, each rank has its share of the positions
  std::int64_t tp_overlap = 1;  // with sp: pieces in which an exchange runs beside its product; 1: all rows at once
  std::int64_t cp = 1;          // ranks that share the positions of each sequence
  ContextMode cp_mode = ContextMode::ulysses;
  std::int64_t cp_ring = 2;  // for both: ranks of a ring
  std::int64_t ep = 1;       // ranks with other sequences and other experts

  [[nodiscard]] std::int64_t ranks() const { return (dp > 1 ? dp : 1) * pp * tp * cp * ep; }
  [[nodiscard]] std::int64_t ring() const {
    return cp == 1 || cp_mode == ContextMode::ulysses ? 1 : cp_mode != ContextMode::both ? cp : cp_ring;
  }
};

}  // namespace terrace::cli
