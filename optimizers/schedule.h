// Learning-rate schedules and global-norm clipping.
//
// Pure. Errors: Error(ErrorKind::refused) for unknown names or values out of range.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

enum class ScheduleKind : std::uint8_t { constant, linear, cosine, wsd };
ScheduleKind parse_schedule(std::string_view name);

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double peak = 3e-4, minimum = 3e-5;
  std::uint64_t warmup_steps = 0, total_steps = 1;
  double wsd_decay_fraction = 0.2;  // of total_steps, at the end: linear to the minimum (MiniCPM's warm-up, stable, decay)

  // The rate of step `step` (counts from 1): linear warm-up to the peak over warmup_steps, then the kind's decay to `minimum`
  // at total_steps, and `minimum` after it.
  [[nodiscard]] double at(std::uint64_t step) const;
};

// min(1, max_norm / (norm + 1e-6)), as PyTorch's clip_grad_norm_; 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace terrace
