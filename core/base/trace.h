// Spans of time by lane, written as Chrome/Perfetto JSON; simulated and real runs in the same form.
//
// Owner:   main owns the Trace; other code holds a pointer that may be null (no tracing).
// Threads: span() and counter() from any thread; write() when nothing else runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace terrace {

std::int64_t now_ns();  // monotonic

struct TraceSpan {
  std::string lane;  // "compute", "upload", "read", …: one row of the diagram
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;
};
struct TraceCounter {
  std::string name;  // "device bytes"
  std::int64_t at_ns = 0;
  double value = 0;
};

class Trace {
 public:
  void span(TraceSpan span);
  void counter(TraceCounter counter);
  void forget_before(std::int64_t ns);  // drops what ended before: a long run keeps only its last steps
  // Drops what ended in this interval: an evaluation of any length keeps only its last micro-batches.
  void forget_between(std::int64_t begin_ns, std::int64_t end_ns);
  void write(const std::filesystem::path& file, const std::string& process_name = "terrace") const;
  [[nodiscard]] std::vector<TraceSpan> spans() const;
  [[nodiscard]] std::vector<TraceCounter> counters() const;

 private:
  mutable std::mutex mutex_;
  std::vector<TraceSpan> spans_;
  std::vector<TraceCounter> counters_;
};

}  // namespace terrace
