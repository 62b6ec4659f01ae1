#include <terrace/parallel/run/weight_average.h>

#include <cstring>
#include <span>

namespace terrace::running {
namespace {

template <class Number>
std::span<Number> numbers_in(std::span<std::byte> bytes) {
  return {reinterpret_cast<Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}

}  // namespace

WeightAverage::WeightAverage(Communicator& ranks, Device& host, comm::SumOrder order)
    : ranks_(ranks), order_(order), stream_(host.make_stream("average")) {}

void WeightAverage::read(const TensorView& weights) {
  if (averaged_) {
    numbers_.clear();
    written_ = 0;
    averaged_ = false;
  }
  dtype_ = weights.dtype == DType::fp64 ? DType::fp64 : DType::fp32;
  const auto held = numbers_.size(), count = static_cast<std::size_t>(weights.elements());
  numbers_.resize(held + count * size_of(dtype_));
  if (weights.dtype == dtype_) {
    std::memcpy(numbers_.data() + held, weights.data, weights.bytes());
    return;
  }
  const auto to = numbers_in<float>(std::span(numbers_).subspan(held));
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(weights.as<bf16>()[i]);
}

void WeightAverage::write(const TensorView& weights) {
  if (!averaged_) average();
  const auto count = static_cast<std::size_t>(weights.elements());
  const auto from = std::span(numbers_).subspan(written_, count * size_of(dtype_));
  written_ += from.size();
  if (weights.dtype == dtype_) {
    std::memcpy(weights.data, from.data(), from.size());
    return;
  }
  const auto wide = numbers_in<float>(from);
  for (std::size_t i = 0; i < count; ++i) weights.as<bf16>()[i] = bf16(wide[i]);
}

void WeightAverage::average() {
  auto sum = comm::Reduction::sum(dtype_);
  sum.order = order_;
  ranks_.all_reduce(*stream_, sum, numbers_, numbers_);
  stream_->synchronize();
  averaged_ = true;
  dtype_ == DType::fp64 ? divide<double>() : divide<float>();
}

template <class Wide>
void WeightAverage::divide() {
  for (auto& number : numbers_in<Wide>(numbers_)) number /= static_cast<Wide>(ranks_.size());
}

}  // namespace terrace::running
