#include <terrace/examples/terrace/plan/trace_window.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/nesting.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>

namespace terrace::cli {
namespace {

using nlohmann::json;

struct RawSpan {
  std::map<std::string, std::vector<TraceWindow::Span>> lanes;
  std::map<std::string, std::vector<std::pair<double, double>>> counters;
};

constexpr std::uint64_t kMostTraceBytes = kGiB;

// A member of another type, in a damaged file, counts as absent.
double number_in(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0;
}
std::string text_in(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? base::printable(found->get<std::string>()) : "";
}
const json& object_in(const json& event, const char* key) {
  static const json kNone = json::object();
  const auto found = event.find(key);
  return found != event.end() && found->is_object() ? *found : kNone;
}
std::pair<double, double> thread_of(const json& event) { return {number_in(event, "pid"), number_in(event, "tid")}; }

// Calls take(event) for each object of the list. The document is never in memory as a whole: its objects take ten times the
// bytes of its text.
void each_event(const std::filesystem::path& file, const std::function<void(const json&)>& take) {
  const auto refuse = [&](const std::string& why) {
    throw Error(
        fmt::format("{} is not a trace: {}\n  remove it; a further step of the run writes a new one", file.string(), why),
        ErrorKind::corrupt);
  };
  bool in_list = false, has_list = false;
  const auto filter = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (depth == 1 && event == Event::key) return in_list = parsed == "traceEvents";
    if (depth == 1 && event == Event::array_start) has_list |= in_list;
    if (depth == 2 && in_list && event == Event::object_end) take(parsed);
    return depth != 2 || (event != Event::object_end && event != Event::value);
  };
  try {
    const auto text = read_text_file(file, kMostTraceBytes);
    base::demand_shallow_json(text);
    [[maybe_unused]] const auto rest = json::parse(text, filter);  // everything except the list
  } catch (const json::parse_error& error) {
    refuse(fmt::format("it is not JSON from its byte {} on", error.byte));
  } catch (const json::exception&) {
    refuse("it has a number that is too large");
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (!has_list) refuse("it has no list \"traceEvents\"");
}

RawSpan read_raw(const std::filesystem::path& file) {
  RawSpan raw;
  using Thread = std::pair<double, double>;
  std::map<Thread, std::string> names;
  std::map<Thread, std::vector<TraceWindow::Span>> spans;
  each_event(file, [&](const json& e) {
    const auto kind = text_in(e, "ph");
    const double begin_s = number_in(e, "ts") * 1e-6;
    if (kind == "M" && text_in(e, "name") == "thread_name") {
      names[thread_of(e)] = text_in(object_in(e, "args"), "name");
    } else if (kind == "X") {
      spans[thread_of(e)].push_back({text_in(e, "name"), begin_s, begin_s + std::max(0.0, number_in(e, "dur")) * 1e-6});
    } else if (kind == "C") {
      const auto& args = object_in(e, "args");
      if (!args.empty() && args.begin().value().is_number())
        raw.counters[text_in(e, "name")].emplace_back(begin_s, args.begin().value().get<double>());
    }
  });
  for (auto& [thread, all] : spans) {
    const auto found = names.find(thread);
    auto& lane = raw.lanes[found == names.end() ? fmt::format("thread {}", thread.second) : found->second];
    lane.insert(lane.end(), std::make_move_iterator(all.begin()), std::make_move_iterator(all.end()));
  }
  for (auto& [lane, all] : raw.lanes) std::ranges::sort(all, {}, &TraceWindow::Span::begin_s);
  for (auto& [name, values] : raw.counters) std::ranges::stable_sort(values, {}, &std::pair<double, double>::first);
  return raw;
}

std::pair<double, double> choose_window(const RawSpan& raw, double step_time_s) {
  if (const auto steps = raw.lanes.find("step"); steps != raw.lanes.end()) {
    return {steps->second.back().begin_s, steps->second.back().end_s};
  }
  double begin = 1e300, end = -1e300;
  const auto cover = [&](const std::vector<TraceWindow::Span>& spans) {
    for (const auto& s : spans) begin = std::min(begin, s.begin_s), end = std::max(end, s.end_s);
  };
  if (const auto compute = raw.lanes.find("compute"); compute != raw.lanes.end()) {
    cover(compute->second);
  } else {
    for (const auto& [lane, spans] : raw.lanes) cover(spans);
  }
  if (step_time_s > 0 && end - begin > 1.5 * step_time_s) begin = end - step_time_s;
  return {begin, end};
}

double busy_seconds(const std::vector<TraceWindow::Span>& spans) {
  double busy = 0, until = -1e300;
  for (const auto& s : spans) {
    if (s.end_s > until) busy += s.end_s - std::max(s.begin_s, until);
    until = std::max(until, s.end_s);
  }
  return busy;
}

// The spans of each lane within [begin, end], compute first.
std::vector<TraceWindow::Row> rows_between(const std::map<std::string, std::vector<TraceWindow::Span>>& spans_of, double begin,
                                           double end) {
  static constexpr std::array<std::string_view, 6> kOrder{"compute", "update", "upload", "download", "read", "write"};
  std::vector<TraceWindow::Row> rows;
  std::vector<std::string> lanes;
  for (const auto lane : kOrder)
    if (spans_of.contains(std::string(lane))) lanes.emplace_back(lane);
  for (const auto& [lane, spans] : spans_of)
    if (lane != "step" && std::ranges::find(lanes, lane) == lanes.end()) lanes.push_back(lane);
  for (const auto& lane : lanes) {
    TraceWindow::Row row{.lane = lane, .spans = {}, .busy_s = 0};
    for (const auto& s : spans_of.at(lane)) {
      if (s.end_s <= begin || s.begin_s >= end) continue;
      row.spans.push_back({s.name, std::max(s.begin_s, begin) - begin, std::min(s.end_s, end) - begin});
    }
    row.busy_s = busy_seconds(row.spans);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

TraceWindow window_of(const Trace& trace, double end_s, double seconds) {
  std::map<std::string, std::vector<TraceWindow::Span>> lanes;
  for (const auto& s : trace.spans())
    lanes[s.lane].push_back({s.name, static_cast<double>(s.begin_ns) * 1e-9, static_cast<double>(s.end_ns) * 1e-9});
  for (auto& [lane, spans] : lanes) std::ranges::sort(spans, {}, &TraceWindow::Span::begin_s);
  return {.seconds = seconds, .rows = rows_between(lanes, end_s - seconds, end_s), .counters = {}};
}

TraceWindow read_trace_window(const std::filesystem::path& file, double step_time_s) {
  const auto raw = read_raw(file);
  TraceWindow window;
  if (raw.lanes.empty()) return window;
  const auto [begin, end] = choose_window(raw, step_time_s);
  window.seconds = end - begin;

  window.rows = rows_between(raw.lanes, begin, end);
  for (const auto& [name, values] : raw.counters) {
    TraceWindow::Counter counter{.name = name, .values = {}, .peak = 0};
    const auto first = std::ranges::upper_bound(values, begin, {}, &std::pair<double, double>::first);
    counter.values.emplace_back(0.0, first == values.begin() ? 0.0 : std::prev(first)->second);
    for (auto at = first; at != values.end() && at->first <= end; ++at)
      counter.values.emplace_back(at->first - begin, at->second);
    counter.values.emplace_back(window.seconds, counter.values.back().second);
    for (const auto& [at, value] : counter.values) counter.peak = std::max(counter.peak, value);
    window.counters.push_back(std::move(counter));
  }
  return window;
}

}  // namespace terrace::cli
