// The scale of the loss, which keeps gradients away from the ends of a narrow format's range (Micikevicius et al.: "Mixed
// precision training", ICLR 2018). Gradients are multiplied by it; the update divides by it.
//
// Scales are powers of two, so that scaling changes no bit unless something overflows or underflows. If gradients are not
// finite, a dynamic scale halves and the step is skipped; after kGrowthInterval good steps it doubles.
//
// Owner:   the trainer. Threads: a value. Errors: Error(ErrorKind::refused) for text that is not a scale.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

class LossScale {
 public:
  static constexpr double kFirst = 65536, kSmallest = 1, kGreatest = 1 << 24;
  static constexpr std::uint64_t kGrowthInterval = 2000;  // steps

  // "off" (1), "dynamic", or a power of two.
  static LossScale parse(std::string_view text);

  [[nodiscard]] bool dynamic() const { return dynamic_; }
  [[nodiscard]] double value() const { return value_; }
  // For a step with a finite loss and non-finite gradients: true if the scale may be the cause. Then skip the step and continue
  // with half the scale.
  [[nodiscard]] bool can_back_off() const { return dynamic_ && value_ > kSmallest; }
  void overflowed();
  void succeeded();

  // The part of a commit from which a resumed run continues; a fixed scale needs none.
  struct State {
    double value = kFirst;
    std::uint64_t good_steps = 0;  // since the scale last changed
    friend bool operator==(const State&, const State&) = default;
  };
  [[nodiscard]] State state() const { return {value_, good_steps_}; }
  void restore(const State& state);

 private:
  bool dynamic_ = false;
  double value_ = 1;
  std::uint64_t good_steps_ = 0;
};

}  // namespace terrace
