#include <terrace/parallel/comm/fold.h>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/comm/fold_kernels.h>

namespace terrace::comm {
namespace folding {

const Kernels& select_kernels() {
  for (int table = kKernelTables - 1; table > 0; --table) {
    if (const Kernels* kernels = kernels_if_supported(table)) return *kernels;
  }
  return kKernelsBaseline;
}

}  // namespace folding

namespace {

int types_of(const Reduction& r) {
  if (r.blocks) return r.from == DType::fp32 && r.to == DType::fp32 && r.fold == Fold::sum ? folding::block8_to_fp32 : -1;
  if (r.from == DType::bf16 && r.to == DType::fp32) return folding::bf16_to_fp32;
  if (r.from == DType::fp32 && r.to == DType::bf16) return folding::fp32_to_bf16;
  if (r.from != r.to) return -1;
  switch (r.from) {
    case DType::fp32: return folding::fp32;
    case DType::fp64: return folding::fp64;
    case DType::bf16: return folding::bf16;
    default: return -1;
  }
}

}  // namespace

bool is_supported(const Reduction& reduction) { return types_of(reduction) >= 0; }

std::string to_string(const Reduction& r) {
  const auto text = fmt::format("{}{} {}", r.order == SumOrder::ranks ? "rank-ordered " : "",
                                r.blocks ? "int8 block" : name_of(r.from), r.fold == Fold::sum ? "sum" : "max");
  return r.onto || r.from != r.to || r.blocks ? fmt::format("{} {} {}", text, r.onto ? "onto" : "to", name_of(r.to)) : text;
}

namespace {

const folding::Kernels& kernels() {
  static const folding::Kernels& selected = folding::select_kernels();
  return selected;
}

}  // namespace

void fold(const Reduction& reduction, std::byte* to, std::span<const std::byte* const> from, std::int64_t count) {
  const int types = types_of(reduction);
  if (types < 0) throw Error(fmt::format("fold: the reduction {} is not supported", to_string(reduction)));
  if (from.empty()) throw Error("fold: nothing to fold");
  kernels().kernel[types][reduction.fold == Fold::max][reduction.onto](to, reinterpret_cast<const void* const*>(from.data()),
                                                                       static_cast<int>(from.size()), count);
}

void fold_past_cache(const Reduction& reduction, std::byte* to, std::span<const std::byte* const> from, std::int64_t count) {
  constexpr std::size_t kLine = 64;
  const auto e = reduction.from_bytes(), e_to = reduction.to_bytes();
  const auto before = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (reduction.onto || reduction.blocks || before % e_to != 0) return fold(reduction, to, from, count);
  const auto head = std::min(count, static_cast<std::int64_t>(before / e_to));
  fold(reduction, to, from, head);
  std::vector<const void*> rest;
  for (const auto* const source : from) rest.push_back(source + static_cast<std::size_t>(head) * e);
  kernels().past_cache[types_of(reduction)][reduction.fold == Fold::max](
      to + static_cast<std::size_t>(head) * e_to, rest.data(), static_cast<int>(rest.size()), count - head);
}

}  // namespace terrace::comm
