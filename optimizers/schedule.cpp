#include <terrace/optimizers/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error("schedule: " + what, ErrorKind::refused); }

void check(const Schedule& s) {
  if (!std::isfinite(s.peak) || s.peak < 0)
    refuse(fmt::format("the peak rate is {}; it must be finite and not negative", s.peak));
  if (s.kind != ScheduleKind::constant && !(s.minimum >= 0 && s.minimum <= s.peak)) {
    refuse(fmt::format("the minimum rate is {}; it must lie in [0, {}], the peak", s.minimum, s.peak));
  }
  if (s.total_steps == 0) refuse("the total number of steps is 0; it must be at least 1");
  if (s.warmup_steps > s.total_steps) {
    refuse(fmt::format("{} warm-up steps do not fit into {} steps in total", s.warmup_steps, s.total_steps));
  }
  if (s.kind == ScheduleKind::wsd && !(s.wsd_decay_fraction >= 0 && s.wsd_decay_fraction <= 1)) {
    refuse(fmt::format("the decay fraction of wsd is {}; it must lie in [0, 1]", s.wsd_decay_fraction));
  }
}

// From `peak` at step `begin` in a straight line to `minimum` at `end`; begin < step < end.
double line(const Schedule& s, double begin, double step, double end) {
  return s.peak + (s.minimum - s.peak) * ((step - begin) / (end - begin));
}

}  // namespace

ScheduleKind parse_schedule(std::string_view name) {
  if (name == "constant") return ScheduleKind::constant;
  if (name == "linear") return ScheduleKind::linear;
  if (name == "cosine") return ScheduleKind::cosine;
  if (name == "wsd") return ScheduleKind::wsd;
  refuse(fmt::format("\"{}\" is unknown; accepted are constant, linear, cosine and wsd", name));
}

double Schedule::at(std::uint64_t step) const {
  check(*this);
  if (step == 0) refuse("steps count from 1");
  if (step <= warmup_steps) return peak * (static_cast<double>(step) / static_cast<double>(warmup_steps));
  if (kind == ScheduleKind::constant) return peak;
  if (step >= total_steps) return minimum;

  const auto now = static_cast<double>(step), warm = static_cast<double>(warmup_steps),
             total = static_cast<double>(total_steps);
  switch (kind) {
    case ScheduleKind::constant: return peak;
    case ScheduleKind::linear: return line(*this, warm, now, total);
    case ScheduleKind::cosine: {
      const double progress = (now - warm) / (total - warm);
      return minimum + 0.5 * (peak - minimum) * (1.0 + std::cos(std::numbers::pi * progress));
    }
    case ScheduleKind::wsd: {
      const double decay_begin = std::max(warm, total - std::round(wsd_decay_fraction * total));
      return now <= decay_begin ? peak : line(*this, decay_begin, now, total);
    }
  }
  refuse("unknown kind");
}

double clip_factor(double norm, double max_norm) {
  if (!(max_norm >= 0) || std::isinf(max_norm)) {
    refuse(fmt::format("the largest gradient norm is {}; it must be finite and not negative (0 turns clipping off)", max_norm));
  }
  if (max_norm == 0) return 1.0;
  // Written so that a NaN norm gives NaN, which the caller detects, and not 1.
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1.0 ? 1.0 : factor;
}

}  // namespace terrace
