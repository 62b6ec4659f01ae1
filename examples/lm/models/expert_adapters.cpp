#include <terrace/examples/lm/models/expert_adapters.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include <terrace/core/math/views.h>
#include <terrace/parallel/layers/parts/names.h>

namespace terrace::lm {
namespace {

// The name of an expert's adapter parameter without the expert's number: the part before it, and "gate_up_proj.lora_A.weight".
struct ExpertName {
  std::string before, product;
};
std::optional<ExpertName> expert_name(const std::string& name, std::string_view experts) {
  const auto at = name.find("." + std::string(experts));
  if (at == std::string::npos) return std::nullopt;
  const auto from_number = std::string_view(name).substr(at + 1 + experts.size());
  return ExpertName{name.substr(0, at + 1), std::string(from_number.substr(from_number.find('.') + 1))};
}

void copy(TensorView to, std::int64_t at, TensorView from, std::int64_t from_at, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(size_of(to.dtype));
  std::memcpy(to.data + at * size, from.data + from_at * size, static_cast<std::size_t>(count * size));
}

// A temporary buffer of `count` elements.
class Room {
 public:
  Room(DType dtype, std::int64_t count) : bytes_(static_cast<std::size_t>(count) * size_of(dtype)), dtype_(dtype) {}
  TensorView view(std::int64_t count) { return {bytes_.data(), dtype_, {count}}; }

 private:
  std::vector<std::byte> bytes_;
  DType dtype_;
};

}  // namespace

std::vector<AdapterTensor> adapter_tensors(const Model& model, const layers::Adapters& adapters, std::string_view experts,
                                           std::string_view library_prefix) {
  std::vector<AdapterTensor> all;
  const auto is_adapted = [&](std::string_view target) { return std::ranges::count(adapters.tensors, target) != 0; };
  // PEFT wraps the experts once per adapter: the adapter of the first products is inside the one of the second.
  const bool both = is_adapted(layers::kExpertsUp) && is_adapted(layers::kExpertsDown);
  std::map<std::string, std::size_t> of_experts;  // indexes of `all`
  for (const auto& layer : model.layers) {
    for (const auto& param : layer->params()) {
      if (!layers::is_adapter(param.name)) continue;
      const auto expert = expert_name(param.name, experts);
      if (!expert) {
        all.push_back({.whole = param, .parts = {param}});
        continue;
      }
      const auto matrix = expert->product.substr(expert->product.find('.') + 1);  // "lora_A.weight"
      const bool inner = both && expert->product.starts_with(layers::kExpertUp);
      auto name = expert->before + std::string(library_prefix) + (inner ? "base_layer." : "") + matrix;
      const auto [at, is_new] = of_experts.emplace(name, all.size());
      if (is_new) {
        const bool rows = matrix.starts_with(layers::kAdapterA.substr(1));
        all.push_back({.whole = param, .parts = {}, .of = rows ? AdapterTensor::Of::rows : AdapterTensor::Of::columns});
        all.back().whole.name = std::move(name);
      }
      all[at->second].parts.push_back(param);
    }
  }
  for (auto& tensor : all) {
    const auto parts = std::ssize(tensor.parts);
    auto& shape = tensor.whole.shape;
    if (tensor.of == AdapterTensor::Of::rows)
      shape = {shape[0] * parts, shape[1]};
    else
      shape = {shape[0], shape[1] * parts};
  }
  return all;
}

void read_whole(const AdapterTensor& tensor, std::uint64_t first, TensorView range, const ReadRange& read) {
  const auto n = range.elements(), parts = std::ssize(tensor.parts);
  if (parts == 1) return read(tensor.parts[0], first, range);
  const auto begin = static_cast<std::int64_t>(first);
  if (tensor.of == AdapterTensor::Of::rows) {
    const auto each = tensor.parts[0].shape.elements();
    for (std::int64_t at = 0; at < n;) {
      const auto part = (begin + at) / each, from = (begin + at) % each, count = std::min(n - at, each - from);
      read(tensor.parts[static_cast<std::size_t>(part)], static_cast<std::uint64_t>(from), math::part(range, at, {count}));
      at += count;
    }
    return;
  }
  // Element i of a part is element i · parts + part of the whole tensor.
  const auto low = begin / parts, high = (begin + n + parts - 1) / parts;
  Room room(range.dtype, high - low);
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto some = room.view(high - low);
    read(tensor.parts[static_cast<std::size_t>(part)], static_cast<std::uint64_t>(low), some);
    for (std::int64_t i = low; i < high; ++i)
      if (const auto at = i * parts + part - begin; at >= 0 && at < n) copy(range, at, some, i - low, 1);
  }
}

void read_part(const AdapterTensor& tensor, std::size_t part, std::uint64_t first, TensorView range, const ReadElements& read) {
  const auto n = range.elements(), parts = std::ssize(tensor.parts), begin = static_cast<std::int64_t>(first);
  const auto number = static_cast<std::int64_t>(part);
  if (tensor.of == AdapterTensor::Of::rows) {
    const auto each = tensor.parts[0].shape.elements();
    return read(static_cast<std::uint64_t>(number * each + begin), range);
  }
  // In small pieces, because each element of the part needs `parts` elements of the whole tensor to be read.
  constexpr std::int64_t kMost = 1 << 18;
  const auto step = std::max<std::int64_t>(1, kMost / parts);
  Room room(range.dtype, std::min(n, step) * parts);
  for (std::int64_t at = 0; at < n; at += step) {
    const auto count = std::min(step, n - at);
    const auto some = room.view(count * parts);
    read(static_cast<std::uint64_t>((begin + at) * parts), some);
    for (std::int64_t i = 0; i < count; ++i) copy(range, at + i, some, i * parts + number, 1);
  }
}

}  // namespace terrace::lm
