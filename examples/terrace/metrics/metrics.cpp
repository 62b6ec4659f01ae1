#include <terrace/examples/terrace/metrics/metrics.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/base/sealed_json.h>
#include <terrace/examples/terrace/metrics/metric_table.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

[[noreturn]] void fail(const fs::path& file, const std::string& what, const std::string& why) {
  throw Error(fmt::format("{} cannot be {}: {}\n  make room or change the permissions there, then continue with --resume auto",
                          file.string(), what, why));
}

// JSON has no infinity and no NaN: null stands for both and is read as NaN.
double real(const json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  return found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::uint64_t count(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

constexpr std::uint64_t kAllSteps = std::numeric_limits<std::uint64_t>::max();

// Passes the complete lines up to the one of `last_step` to `take`, until it returns false. The lines after it may be
// damaged, because lines after a commit are not synced.
using TakeLine = std::function<bool(const std::string& text, const json& object)>;
void each_line(const fs::path& file, std::uint64_t last_step, const TakeLine& take) {
  std::uint64_t number = 0;
  std::string broken;
  std::exception_ptr thrown;  // by `take`, not because of the file
  const auto take_text = [&](const std::string& text, bool complete) {
    ++number;
    if (!complete) return false;  // the writer was stopped inside this line
    if (text.empty()) return true;
    json object;
    try {
      object = parse_sealed(text);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::refused)
        throw base::Refused(fmt::format("{}, line {}: {}", file.string(), number, error.what()));
      broken = error.what();
      return false;
    }
    const auto step = count(object, "step");
    try {
      return (step > last_step || take(text, object)) && step < last_step;
    } catch (...) {
      thrown = std::current_exception();
      return false;
    }
  };
  try {
    read_lines(file, take_text);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::refused) throw;
    if (error.kind() != ErrorKind::corrupt) fail(file, "read", error.what());
    broken = error.what();
  }
  if (thrown) std::rethrow_exception(thrown);
  if (!broken.empty())
    throw Error(fmt::format("{}{}: {}\n  remove the file, or restore it, and run the command again: training needs none "
                            "of its lines",
                            file.string(), number == 0 ? "" : fmt::format(", line {}", number), broken),
                ErrorKind::corrupt);
}

}  // namespace

json to_json(const StepMetrics& m) {
  json out{{"stall", json::object()}};
  for (const auto& metric : metric_table()) {
    const auto values = values_of(metric, m);
    for (const auto& [cause, value] : values) {
      auto& group = metric.group.empty() ? out : out[std::string(metric.group)];
      group[metric.key.empty() ? cause : std::string(metric.key)] = value.is_count ? json(value.count) : json(value.real);
    }
  }
  if (m.skipped) out["skipped"] = true;
  if (!m.loss) out["no_targets"] = true;
  return out;
}

StepMetrics metrics_from_json(const json& object) {
  StepMetrics m;
  for (const auto& metric : metric_table()) {
    static const auto kNone = json::object();
    const auto found = metric.group.empty() ? object.end() : object.find(metric.group);
    const auto& group = metric.group.empty() ? object : found != object.end() && found->is_object() ? *found : kNone;
    const std::string key(metric.key);
    if (const auto* const field = std::get_if<std::uint64_t StepMetrics::*>(&metric.field)) m.** field = count(group, key);
    if (const auto* const field = std::get_if<double StepMetrics::*>(&metric.field)) m.** field = real(group, key);
    if (const auto* const field = std::get_if<std::optional<double> StepMetrics::*>(&metric.field);
        field && group.contains(key))
      m.** field = real(group, key);
    if (const auto* const field = std::get_if<Metric::ByCause>(&metric.field))
      for (const auto& [cause, value] : group.items()) (m.**field)[cause] = value.is_number() ? value.get<double>() : 0;
  }
  m.skipped = object.contains("skipped") && object.at("skipped") == true;
  return m;
}

MetricsWriter::MetricsWriter(fs::path file, std::uint64_t done_steps) : file_(std::move(file)) {
  constexpr std::size_t kAtOnce = 1 << 16;
  std::optional<files::NewFile> begun;
  const auto begin = [&](const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      fail(file_, "begun", error.what());
    }
  };
  begin([&] { begun.emplace(file_, 0644, O_APPEND); });
  std::string kept;
  if (done_steps > 0 && fs::exists(file_))
    each_line(file_, done_steps, [&](const std::string& text, const json&) {
      kept += text + '\n';
      if (kept.size() < kAtOnce) return true;
      begin([&] { begun->write(kept); });
      kept.clear();
      return true;
    });
  begin([&] {
    begun->write(kept);
    begun->finish(files::Durable::yes);
  });
  opened_ = begun->release();
}

void MetricsWriter::write(const StepMetrics& metrics) try {
  files::write_all(opened_.get(), seal(to_json(metrics)) + '\n');
} catch (const Error& error) {
  fail(file_, "written", error.what());
}

void MetricsWriter::sync() {
  if (::fdatasync(opened_.get()) != 0 && errno != EINVAL) fail(file_, "synced", describe_errno(errno));
}

void each_step(const fs::path& file, const std::function<bool(const StepMetrics&)>& take) {
  each_line(file, kAllSteps, [&](const std::string&, const json& object) { return take(metrics_from_json(object)); });
}

std::vector<StepMetrics> read_metrics(const fs::path& file) {
  std::vector<StepMetrics> out;
  each_step(file, [&](const StepMetrics& m) {
    out.push_back(m);
    return true;
  });
  return out;
}

std::optional<StepMetrics> best_evaluation(const std::filesystem::path& file) {
  std::optional<StepMetrics> best;
  each_step(file, [&](const StepMetrics& m) {
    if (m.eval_loss && std::isfinite(*m.eval_loss) && (!best || *m.eval_loss < *best->eval_loss)) best = m;
    return true;
  });
  return best;
}

std::string missing_steps(const fs::path& file, std::uint64_t done_steps) {
  std::vector<bool> there(done_steps + 1);
  std::optional<std::uint64_t> first;
  each_step(file, [&](const StepMetrics& m) {
    if (!first) first = m.step;
    if (m.step <= done_steps) there[m.step] = true;
    return true;
  });
  if (!first) return "";
  std::uint64_t missing = 0, least = 0;
  for (auto step = *first; step <= done_steps; ++step)
    if (!there[step] && missing++ == 0) least = step;
  if (missing == 0) return "";
  return missing == 1 ? fmt::format("step {}", least) : fmt::format("{} steps, the first of them {}", missing, least);
}

}  // namespace terrace::cli
