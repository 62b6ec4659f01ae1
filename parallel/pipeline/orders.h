// Orders of a pipeline: pure functions of a few lines that write the task lists of the ranks. To add one: its own file, a CMake
// line, and its line in the table in orders.cpp.
//
// p: ranks, m: micro-batches, r: a rank. Every order takes any m ≥ 1 unless its line says otherwise. Backwards of one stage run
// in micro-batch order, because gradients are folded in that order.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for degrees that an order does not support, with the nearest supported
// ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

struct OrderOptions {
  std::uint32_t ranks = 1, micro_batches = 1;
  std::uint32_t chunks = 2;   // stages of each rank, for orders that interleave
  std::uint32_t updates = 1;  // updates in a step, for asynchronous orders; each covers `micro_batches`
};

Schedule layerwise(const OrderOptions& options);    // one micro-batch after another through all stages
Schedule gpipe(const OrderOptions& options);        // all forwards, then all backwards (Huang 2019)
Schedule one_f_one_b(const OrderOptions& options);  // PipeDream-Flush (Narayanan 2021): min(m, p − r) live activations
Schedule interleaved(const OrderOptions& options);  // Megatron-LM (Narayanan 2021): the bubble divided by `chunks`
Schedule zb_h1(const OrderOptions& options);        // zero bubble with the memory of 1F1B (Qi 2023)
Schedule zb_v(const OrderOptions& options);         // controllable memory, V placement (Qi 2024)
Schedule chimera(const OrderOptions& options);      // two directions (Li 2021); p even
Schedule dualpipe_v(const OrderOptions& options);   // DualPipe cut in half (DeepSeek 2025); m ≥ 2p

// Asynchronous: 1F1B over the micro-batches of several updates, without a barrier between them (Narayanan 2019, 2021).
Schedule pipedream(const OrderOptions& options);      // stashes weights: rank r keeps at most p − 1 − r old versions
Schedule pipedream_2bw(const OrderOptions& options);  // all stages are one update late, two versions; m ≥ p

struct NamedOrder {
  std::string_view name;  // as `schedule` takes it
  Schedule (*write)(const OrderOptions&);
  bool asynchronous = false;  // its weights differ from those of a run on one rank
};
std::span<const NamedOrder> all_orders();
Schedule write_order(std::string_view name, const OrderOptions& options);

}  // namespace terrace::pipeline
