#include <terrace/bench/disk/request_queue.h>

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::bench {

void run_all(IoEngine& engine, std::deque<IoRequest>& requests, std::uint32_t queue_depth) {
  std::size_t next = 0;
  int failed = 0;
  const auto submit = [&] {
    IoRequest* const one = &requests[next++];
    engine.submit({&one, 1});
  };
  for (auto& request : requests)
    request.done = [&](IoRequest&, int error_number) {
      if (error_number != 0) failed = error_number;
      if (next < requests.size()) submit();
    };
  while (next < std::min<std::size_t>(queue_depth, requests.size())) submit();
  while (engine.in_flight() > 0) engine.poll(std::chrono::seconds{1});
  if (failed != 0) throw Error(fmt::format("the benchmark's file: {}", describe_errno(failed)));
}

}  // namespace terrace::bench
