// The scale of the loss, which keeps gradients away from the ends of a narrow format's range (Micikevicius et al.: "Mixed
// precision training", ICLR 2018). Gradients come out multiplied by it; the update divides by it.
//
// Scales are powers of two, so that scaling changes no bit where nothing overflows or underflows. A dynamic scale halves when
// gradients are not finite, and that step is left out; it doubles after so many steps without.
//
// Owner:   the trainer. Threads: a value. Errors: Error(Exit::usage) for text that is no scale.
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
  // Of a step whose loss was finite: whether its gradients, which are not, may be so by the scale alone. Then the step is to be
  // skipped and tried on with half the scale.
  [[nodiscard]] bool can_back_off() const { return dynamic_ && value_ > kSmallest; }
  void overflowed();
  void succeeded();

  // What a commit keeps, and a resumed run goes on with; a fixed scale has nothing to keep.
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
