#include <terrace/parallel/map/pack.h>

#include <utility>

#include <terrace/memory/chunk.h>

namespace terrace::mapping {
namespace {

constexpr std::uint64_t kTensorAlignBytes = 64;

}  // namespace

Pack::Pack(std::vector<TensorSpec> specs) : tensors(std::move(specs)) {
  for (const auto& t : tensors) {
    offsets.push_back(bytes);
    bytes = round_up(bytes + t.bytes(), kTensorAlignBytes);
  }
  bytes = round_up(bytes, kPageBytes);
}

std::vector<TensorView> Pack::views(std::byte* base) const {
  std::vector<TensorView> v;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    v.push_back({base ? base + offsets[i] : nullptr, tensors[i].dtype, tensors[i].shape});
  return v;
}

}  // namespace terrace::mapping
