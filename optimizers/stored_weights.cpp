#include <terrace/optimizers/stored_weights.h>

#include <algorithm>
#include <vector>

#include <terrace/optimizers/formats/codecs.h>

namespace terrace::rules {
namespace {

constexpr std::int64_t kPieceElements = 16384;  // split weights are joined in a buffer of this many elements

TensorView view_of(const Stored& stored, std::int64_t first, std::int64_t count) {
  const auto dtype = dtype_of_format(stored.format);
  return {stored.data + static_cast<std::size_t>(first) * size_of(dtype), dtype, {count}};
}

void widen(float* to, Format format, const Codecs::Half* from, std::int64_t count) {
  const auto each = [&](const auto* numbers) { std::transform(numbers, numbers + count, to, [](auto x) { return float(x); }); };
  format == Format::fp16 ? each(reinterpret_cast<const fp16*>(from)) : each(reinterpret_cast<const bf16*>(from));
}

}  // namespace

void write_weights(const StoredWeights& w, std::int64_t first, std::int64_t count, const UseWeights& use) {
  if (w.master.format == Format::none && !w.widened) return use(0, view_of(w.parameter, first, count));
  const auto isa = best_isa();
  const auto parameter = [&](std::int64_t i) { return reinterpret_cast<Codecs::Half*>(w.parameter.data) + first + i; };
  if (w.master.format == Format::fp32) {
    const auto master = view_of(w.master, first, count);
    use(0, master);
    const auto& rounded = w.parameter.format == Format::fp16 ? kCodecs.round_fp16 : kCodecs.round_weight;
    return rounded.of(isa)(parameter(0), master.as<float>(), count);
  }
  std::vector<float> piece(static_cast<std::size_t>(std::min(count, kPieceElements)));
  for (std::int64_t i = 0; i < count; i += kPieceElements) {
    const auto n = std::min(count - i, kPieceElements);
    use(i, {reinterpret_cast<std::byte*>(piece.data()), DType::fp32, {n}});
    if (w.widened)
      (w.parameter.format == Format::fp16 ? kCodecs.round_fp16 : kCodecs.round_weight).of(isa)(parameter(i), piece.data(), n);
    else if (w.master.format == Format::low8)
      kCodecs.split24.of(isa)(parameter(i), reinterpret_cast<std::uint8_t*>(w.master.data) + first + i, piece.data(), n);
    else
      kCodecs.split.of(isa)(parameter(i), reinterpret_cast<Codecs::Half*>(w.master.data) + first + i, piece.data(), n);
  }
}

void read_weights(const StoredWeights& w, std::int64_t first, std::int64_t count, const UseWeights& use) {
  if (!is_low(w.master.format) && !w.widened)
    return use(0, view_of(w.master.format == Format::none ? w.parameter : w.master, first, count));
  const auto isa = best_isa();
  std::vector<float> piece(static_cast<std::size_t>(std::min(count, kPieceElements)));
  for (std::int64_t i = 0; i < count; i += kPieceElements) {
    const auto n = std::min(count - i, kPieceElements);
    const auto* const high = reinterpret_cast<const Codecs::Half*>(w.parameter.data) + first + i;
    if (w.widened)
      widen(piece.data(), w.parameter.format, high, n);
    else if (w.master.format == Format::low8)
      kCodecs.join24.of(isa)(piece.data(), high, reinterpret_cast<const std::uint8_t*>(w.master.data) + first + i, n);
    else
      kCodecs.join.of(isa)(piece.data(), high, reinterpret_cast<const Codecs::Half*>(w.master.data) + first + i, n);
    use(i, {reinterpret_cast<std::byte*>(piece.data()), DType::fp32, {n}});
  }
}

}  // namespace terrace::rules
