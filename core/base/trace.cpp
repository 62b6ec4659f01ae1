#include <terrace/core/base/trace.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/trace_file.h>

namespace terrace {
namespace {

// A JSON string literal; bytes that are not UTF-8 are replaced, because a trace must not make a run fail.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

// The Trace Event Format: "M" names a process or thread, "X" is a complete span, "C" a counter; times in microseconds.
fmt::memory_buffer text_of(const std::vector<TraceSpan>& spans, const std::vector<TraceCounter>& counters,
                           const std::string& process_name) {
  fmt::memory_buffer text;
  const auto out = std::back_inserter(text);

  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();  // so that simulated and real runs both begin at 0
  for (const auto& s : spans) origin_ns = std::min(origin_ns, s.begin_ns);
  for (const auto& c : counters) origin_ns = std::min(origin_ns, c.at_ns);

  fmt::format_to(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  fmt::format_to(out, R"({{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{{"name":{}}}}})", quoted(process_name));
  std::map<std::string, std::size_t> rows;  // lanes keep the order of their first span
  for (const auto& s : spans) {
    const auto [row, fresh] = rows.try_emplace(s.lane, rows.size() + 1);
    if (fresh) {
      fmt::format_to(out,
                     ",\n"
                     R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_name","args":{{"name":{1}}}}})",
                     row->second, quoted(s.lane));
      fmt::format_to(out,
                     ",\n"
                     R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_sort_index","args":{{"sort_index":{0}}}}})",
                     row->second);
    }
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"X","pid":1,"tid":{},"name":{},"ts":{:.3f},"dur":{:.3f}}})",
                   row->second, quoted(s.name), microseconds(s.begin_ns - origin_ns), microseconds(s.end_ns - s.begin_ns));
  }
  for (const auto& c : counters) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"ph":"C","pid":1,"name":{},"ts":{:.3f},"args":{{"value":{}}}}})",
                   quoted(c.name), microseconds(c.at_ns - origin_ns), c.value);
  }
  fmt::format_to(out, "\n]}}\n");
  return text;
}

template <class Write>
void write_or_say(const std::filesystem::path& file, const Write& write) try {
  write();
} catch (const Error& error) {
  throw Error(
      fmt::format("trace file {} cannot be written: {}\n  free space or fix the permissions there, or give another file",
                  file.string(), error.what()),
      error, file.string());
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Trace::span(TraceSpan span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

void Trace::counter(TraceCounter counter) {
  const std::lock_guard lock(mutex_);
  counters_.push_back(std::move(counter));
}

void Trace::forget_before(std::int64_t ns) {
  const std::lock_guard lock(mutex_);
  std::erase_if(spans_, [ns](const TraceSpan& s) { return s.end_ns < ns; });
  std::erase_if(counters_, [ns](const TraceCounter& c) { return c.at_ns < ns; });
}

void Trace::forget_between(std::int64_t begin_ns, std::int64_t end_ns) {
  const auto is_between = [=](std::int64_t ns) { return begin_ns <= ns && ns <= end_ns; };
  const std::lock_guard lock(mutex_);
  std::erase_if(spans_, [&](const TraceSpan& s) { return is_between(s.end_ns); });
  std::erase_if(counters_, [&](const TraceCounter& c) { return is_between(c.at_ns); });
}

std::vector<TraceSpan> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<TraceCounter> Trace::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Trace::write(const std::filesystem::path& file, const std::string& process_name) const {
  const auto text = text_of(spans(), counters(), process_name);
  write_or_say(file, [&] { write_text_file(file, {text.data(), text.size()}); });
}

void base::replace_trace(const Trace& trace, const std::filesystem::path& file) {
  const auto text = text_of(trace.spans(), trace.counters(), "terrace");
  write_or_say(file, [&] { replace_text_file(file, {text.data(), text.size()}); });
}

}  // namespace terrace
