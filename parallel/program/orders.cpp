#include <terrace/parallel/program/orders.h>

#include <algorithm>

namespace terrace::orders {

Program group_vertical(std::uint32_t layers, std::uint32_t micro_batches, std::uint32_t group) {
  Program p{layers, micro_batches, {}};
  const std::uint32_t last = layers - 1;
  for (std::uint32_t first = 0; first < micro_batches; first += group) {
    const std::uint32_t end = std::min(first + group, micro_batches);
    for (std::uint32_t l = 0; l < last; ++l)
      for (std::uint32_t m = first; m < end; ++m) p.actions.push_back({.op = Op::forward, .layer = l, .micro_batch = m});
    for (std::uint32_t l = layers; l-- > 0;)
      for (std::uint32_t m = first; m < end; ++m) p.actions.push_back({.op = Op::backward, .layer = l, .micro_batch = m});
  }
  return p;
}

Program horizontal(std::uint32_t layers, std::uint32_t micro_batches) { return group_vertical(layers, micro_batches, 1); }

Program vertical(std::uint32_t layers, std::uint32_t micro_batches) {
  return group_vertical(layers, micro_batches, std::max(1U, micro_batches));
}

Program evaluation(std::uint32_t layers, std::uint32_t micro_batches) {
  Program p{layers, micro_batches, {}};
  for (std::uint32_t m = 0; m < micro_batches; ++m)
    for (std::uint32_t l = 0; l < layers; ++l) p.actions.push_back({.op = Op::evaluate, .layer = l, .micro_batch = m});
  return p;
}

Program sweep(Op op, std::uint32_t layers, const std::function<std::uint32_t(std::uint32_t)>& chunks_of) {
  Program p{layers, 0, {}};
  for (std::uint32_t l = 0; l < layers; ++l)
    for (std::uint32_t c = 0; c < chunks_of(l); ++c) p.actions.push_back({.op = op, .layer = l, .chunk = c});
  return p;
}

Program decoding(std::uint32_t layers) {
  Program p{layers, 1, {}};
  for (std::uint32_t l = 0; l < layers; ++l) p.actions.push_back({.op = Op::decode, .layer = l});
  return p;
}

}  // namespace terrace::orders
