// Orders: pure functions that write a step's compute actions for one rank. Movement, recomputation and updates are passes.
//
// In every order a layer's backwards run in ascending micro-batch order, so all orders give gradients with the same bits. The
// last layer has no separate forward: its backward computes the loss too.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include <terrace/parallel/program/program.h>

namespace terrace::orders {

// Micro-batch by micro-batch: needs the least activation memory, and uses the weights 2·m times.
Program horizontal(std::uint32_t layers, std::uint32_t micro_batches);
// Layer by layer over groups of `group` micro-batches: uses the weights twice for each group.
Program group_vertical(std::uint32_t layers, std::uint32_t micro_batches, std::uint32_t group);
Program vertical(std::uint32_t layers, std::uint32_t micro_batches);

// Loss only, micro-batch by micro-batch.
Program evaluation(std::uint32_t layers, std::uint32_t micro_batches);
// One action for each chunk, in declared order: `op` is update (drain), fill or visit.
Program sweep(Op op, std::uint32_t layers, const std::function<std::uint32_t(std::uint32_t layer)>& chunks_of);
// One position of generation.
Program decoding(std::uint32_t layers);

}  // namespace terrace::orders
