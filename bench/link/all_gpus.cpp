// The links of all GPUs at once: what each has left of its own rate, and what all of them get together.
#include <string>
#include <utility>
#include <vector>

#include <terrace/bench/link/link.h>
#include <terrace/bench/link/link_advice.h>
#include <terrace/bench/link/load.h>
#include <terrace/bench/statistics.h>

namespace terrace::bench {
namespace {

struct Test {
  const char *op, *nvbandwidth;
  bool advises = true;  // false: a GPU's own other direction also takes a share
};

LoadRates rates_of_all(const std::vector<LoadRates>& rates) {
  auto sum = rates[0];
  for (std::size_t i = 1; i < rates.size(); ++i)
    for (std::size_t r = 0; r < sum.together.size(); ++r) {
      sum.alone[r] += rates[i].alone[r];
      sum.together[r] += rates[i].together[r];
    }
  return sum;
}

// The copies of one test, one for each GPU: their rates while all of them ran.
void report_gpus(Session& session, Test test, const std::vector<Device*>& devices, const std::vector<LoadRates>& rates,
                 std::uint64_t copy_bytes) {
  const auto row = [&](const std::string& gpu, const LoadRates& of, bool theirs) {
    Result result{{"op", test.op},
                  {"gpu", gpu},
                  {"host_memory", "pinned"},
                  {"copy_bytes", copy_bytes},
                  {"gb_per_s", median(of.together)},
                  {"share", median(shares(of))},
                  {"runs", of.together.size()},
                  {"spread", spread(of.together)}};
    if (theirs) result["nvbandwidth"] = test.nvbandwidth;
    session.result(result);
  };
  std::vector<GpuRates> gpus;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    row(devices[i]->name(), rates[i], true);
    gpus.push_back({devices[i]->name(), median(rates[i].alone), median(rates[i].together)});
  }
  row("all", rates_of_all(rates), false);
  if (!test.advises) return;
  for (const auto& line : gpus_advice(test.op, gpus)) session.warn(line);
}

}  // namespace

void measure_all_gpus(Session& session, const std::vector<Device*>& devices, std::uint64_t copy_bytes) {
  std::vector<Slab> slabs;
  std::vector<Load> up, down;
  for (auto* const device : devices) {
    slabs.push_back(device->host_memory()->allocate(2 * copy_bytes));
    auto* const host = slabs.back().data();
    slabs.push_back(device->memory().allocate(2 * copy_bytes));
    auto* const gpu = slabs.back().data();
    up.push_back(copy_load("upload to " + device->name(), *device, gpu, host, copy_bytes));
    down.push_back(copy_load("download from " + device->name(), *device, host + copy_bytes, gpu + copy_bytes, copy_bytes));
  }
  const auto both = [&](std::vector<Load> first, const std::vector<Load>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const std::vector<std::pair<std::vector<Load>, std::vector<Test>>> settings{
      {up, {{"upload_to_all", "host_to_all_memcpy_ce"}}},
      {down, {{"download_from_all", "all_to_host_memcpy_ce"}}},
      {both(up, down),
       {{"upload_to_all_beside_download", "host_to_all_bidirectional_memcpy_ce", false},
        {"download_from_all_beside_upload", "all_to_host_bidirectional_memcpy_ce", false}}}};
  for (const auto& [loads, tests] : settings) {
    const auto rates = rates_together(session, loads);
    if (rates[0].together.empty()) return;  // stopped
    for (std::size_t t = 0; t < tests.size(); ++t) {
      const auto first = rates.begin() + static_cast<std::ptrdiff_t>(t * devices.size());
      report_gpus(session, tests[t], devices, {first, first + static_cast<std::ptrdiff_t>(devices.size())}, copy_bytes);
    }
  }
}

}  // namespace terrace::bench
