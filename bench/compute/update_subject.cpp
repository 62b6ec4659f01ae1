#include <terrace/bench/compute/update_subject.h>

#include <algorithm>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kFirstTouchElements = 65'536;  // as in updates: each thread first touches the memory that it will use
constexpr std::int64_t kSide = 1024, kMostMatrices = 8;

constexpr UpdateStep kFirst{.step = 1, .learning_rate = 1e-9, .first = true};

void fill(ThreadPool& pool, const Stored& to, float value) {
  const auto width = static_cast<std::int64_t>(rules::bytes_of(to.format, 1));
  const std::uint16_t half = to.format == rules::Format::fp16 ? fp16(value).bits : bf16(value).bits;
  pool.parallel_for((to.elements + kFirstTouchElements - 1) / kFirstTouchElements, [&](std::int64_t task) {
    const auto begin = task * kFirstTouchElements, count = std::min(kFirstTouchElements, to.elements - begin);
    if (to.format == rules::Format::fp32)
      std::fill_n(reinterpret_cast<float*>(to.data) + begin, count, value);
    else if (to.format == rules::Format::bf16 || to.format == rules::Format::fp16)
      std::fill_n(reinterpret_cast<std::uint16_t*>(to.data) + begin, count, half);
    else  // the bits of weights below those of their bf16 copy
      std::fill_n(to.data + begin * width, count * width, std::byte{0});
  });
}

// All arrays of a recipe, in one block of memory.
class Arrays {
 public:
  Arrays(MemoryResource& memory, ThreadPool& pool, const rules::Recipe& recipe, std::int64_t elements,
         std::uint64_t packed_numbers) {
    const auto count = [&](ChunkKind kind) {
      return rules::is_packed(recipe.format_of(kind)) ? packed_numbers : static_cast<std::uint64_t>(elements);
    };
    std::uint64_t bytes = 0;
    for (const auto kind : recipe.kinds()) bytes += recipe.chunk_bytes(kind, count(kind));
    slab_ = memory.allocate(bytes);
    auto* at = slab_.data();
    std::size_t state = 0;
    for (const auto kind : recipe.kinds()) {
      const Stored stored{at, recipe.format_of(kind), static_cast<std::int64_t>(count(kind))};
      at += recipe.chunk_bytes(kind, count(kind));
      const auto width = static_cast<double>(rules::bytes_of(stored.format, count(kind))) / static_cast<double>(elements);
      const bool written = kind != ChunkKind::gradient, read = kind != ChunkKind::parameter || !recipe.copies_master();
      bytes_per_element += width * ((written ? 1 : 0) + (read ? 1 : 0));
      if (kind == ChunkKind::parameter) update.parameter = stored;
      if (kind == ChunkKind::gradient) update.gradient = stored;
      if (kind == ChunkKind::master) update.master = stored;
      if (rules::is_packed(stored.format))
        packed.push_back(stored);
      else if (rules::is_optimizer_state(kind))
        update.states[state++] = stored;
      else
        fill(pool, stored, kind == ChunkKind::gradient ? 0.01F : 0.5F);
    }
  }

  ChunkUpdate update;
  std::vector<Stored> packed;
  double bytes_per_element = 0;

 private:
  Slab slab_;
};

class ChunkSubject final : public UpdateSubject {
 public:
  ChunkSubject(MemoryResource& memory, ThreadPool& pool, const Optimizer& optimizer, const rules::Recipe& recipe,
               std::int64_t elements)
      : pool_(pool), optimizer_(optimizer), part_{.first = 0, .count = elements}, arrays_(memory, pool, recipe, elements, 0) {
    arrays_.update.parts = {&part_, 1};
    update(kFirst);
  }
  [[nodiscard]] std::int64_t elements() const override { return part_.count; }
  [[nodiscard]] double bytes_per_element() const override { return arrays_.bytes_per_element; }
  void update(const UpdateStep& step) const override { optimizer_.update(pool_, step, arrays_.update); }

 private:
  ThreadPool& pool_;
  const Optimizer& optimizer_;
  UpdatePart part_;
  Arrays arrays_;
};

class LayerSubject final : public UpdateSubject {
 public:
  LayerSubject(MemoryResource& memory, ThreadPool& pool, const Optimizer& optimizer, const rules::Recipe& recipe,
               std::int64_t elements)
      : device_(make_cpu_device(pool)),
        optimizer_(optimizer),
        tensors_(matrices(elements)),
        needs_(
            optimizer.layer_unit()->needs({.arithmetic = DType::fp32, .run_elements = this->elements(), .tensors = tensors_})),
        arrays_(memory, pool, recipe, this->elements(), needs_.packed_numbers),
        scratch_(memory.allocate(std::max<std::uint64_t>(kPageBytes, round_up(needs_.scratch_bytes, kPageBytes)))),
        stream_(device_->make_stream("updates")) {
    update(kFirst);
  }
  [[nodiscard]] std::int64_t elements() const override { return static_cast<std::int64_t>(tensors_.size()) * kSide * kSide; }
  [[nodiscard]] double bytes_per_element() const override { return arrays_.bytes_per_element; }
  void update(const UpdateStep& step) const override {
    optimizer_.enqueue_layer(
        *stream_, step,
        {.chunks = {&arrays_.update, 1}, .packed = arrays_.packed, .tensors = tensors_, .scratch = scratch_.data()});
    stream_->synchronize();
  }

 private:
  static std::vector<UpdateTensor> matrices(std::int64_t elements) {
    std::vector<UpdateTensor> all;
    for (std::int64_t i = 0; i < std::clamp(elements / (kSide * kSide), std::int64_t{1}, kMostMatrices); ++i)
      all.push_back({.first = i * kSide * kSide, .rows = kSide, .columns = kSide, .hidden = true});
    return all;
  }

  std::unique_ptr<Device> device_;
  const Optimizer& optimizer_;
  std::vector<UpdateTensor> tensors_;
  LayerNeeds needs_;
  Arrays arrays_;
  Slab scratch_;
  std::unique_ptr<Stream> stream_;  // last: an update that failed may still be running
};

}  // namespace

std::unique_ptr<UpdateSubject> make_update_subject(MemoryResource& memory, ThreadPool& pool, const Optimizer& optimizer,
                                                   rules::Recipe recipe, std::int64_t elements) {
  const auto unit = optimizer.layer_unit();
  if (!unit) return std::make_unique<ChunkSubject>(memory, pool, optimizer, recipe, elements);
  if (unit->second_moment != Packed::none) recipe.second_moment = rules::Format::packed;
  return std::make_unique<LayerSubject>(memory, pool, optimizer, recipe, elements);
}

}  // namespace terrace::bench
