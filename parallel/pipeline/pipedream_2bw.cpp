#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// W(k + 1) = W(k) − η∇f(W(k − 1)): all gradients of an update are computed with the weights from before the previous update.
// With m ≥ p, every stage has these weights before the first forward that reads them.
Schedule pipedream_2bw(const OrderOptions& o) {
  if (o.micro_batches < o.ranks && o.updates > 1)
    throw RefusedSetting(
        "grad-accumulation",
        fmt::format("`schedule` pipedream-2bw on {} ranks needs at least {} micro-batches for each update, and there are {}\n  "
                    "give `grad-accumulation` {}, or another `schedule`",
                    o.ranks, o.ranks, o.micro_batches, o.ranks));
  auto s = one_f_one_b({.ranks = o.ranks, .micro_batches = o.micro_batches * o.updates});
  s.update_every = o.micro_batches;
  std::vector<std::uint32_t> reads;
  for (std::uint32_t m = 0; m < s.micro_batches; ++m) reads.push_back(std::max(m / s.update_every, 1U) - 1);
  s.reads.assign(o.ranks, reads);
  return s;
}

}  // namespace terrace::pipeline
