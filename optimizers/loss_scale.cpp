#include <terrace/optimizers/loss_scale.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>

namespace terrace {
namespace {

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::isfinite(value) && value > 0 && std::frexp(value, &exponent) == 0.5;
}

}  // namespace

LossScale LossScale::parse(std::string_view text) {
  LossScale scale;
  if (text == "off") return scale;
  if (text == "dynamic") {
    scale.dynamic_ = true;
    scale.value_ = kFirst;
    return scale;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale.value_);
  const bool number = error == std::errc{} && end == text.data() + text.size();
  if (!number || !is_power_of_two(scale.value_) || scale.value_ < kSmallest || scale.value_ > kGreatest)
    throw RefusedSetting(
        "loss-scale", fmt::format("`loss-scale` \"{}\" is not accepted\n  give off, dynamic, or a power of two from {} to {}: "
                                  "other scales would round every gradient",
                                  text, kSmallest, kGreatest));
  return scale;
}

void LossScale::overflowed() {
  if (!dynamic_) return;
  value_ = std::max(kSmallest, value_ / 2);
  good_steps_ = 0;
}

void LossScale::succeeded() {
  if (!dynamic_ || ++good_steps_ < kGrowthInterval) return;
  value_ = std::min(kGreatest, value_ * 2);
  good_steps_ = 0;
}

void LossScale::restore(const State& state) {
  if (!dynamic_) return;
  if (!is_power_of_two(state.value) || state.value < kSmallest || state.value > kGreatest)
    throw Error(fmt::format("the stored loss scale is {}, which is not a valid one\n  the commit's payload is damaged: go back "
                            "to another commit",
                            state.value),
                ErrorKind::corrupt);
  value_ = state.value;
  good_steps_ = state.good_steps;
}

}  // namespace terrace
