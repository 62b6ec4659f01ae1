#include <terrace/parallel/pipeline/orders.h>

#include <fmt/format.h>

#include <array>

#include <terrace/core/base/error.h>

namespace terrace::pipeline {

std::span<const NamedOrder> all_orders() {
  static constexpr std::array kOrders{
      NamedOrder{"layerwise", layerwise},
      NamedOrder{"gpipe", gpipe},
      NamedOrder{"1f1b", one_f_one_b},
      NamedOrder{"interleaved", interleaved},
      NamedOrder{"zb-h1", zb_h1},
      NamedOrder{"zb-v", zb_v},
      NamedOrder{"chimera", chimera},
      NamedOrder{"dualpipe-v", dualpipe_v},
      NamedOrder{"pipedream", pipedream, true},
      NamedOrder{"pipedream-2bw", pipedream_2bw, true},
  };
  return kOrders;
}

Schedule write_order(std::string_view name, const OrderOptions& options) {
  if (options.ranks == 0 || options.micro_batches == 0 || options.chunks == 0 || options.updates == 0)
    throw Error("a pipeline has at least one rank, one micro-batch, one stage a rank and one update a step",
                ErrorKind::refused);
  std::string known;
  for (const auto& order : all_orders()) {
    if (order.name == name) return order.write(options);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", order.name);
  }
  throw Error(fmt::format("there is no schedule '{}'; known are {}", name, known), ErrorKind::refused);
}

}  // namespace terrace::pipeline
