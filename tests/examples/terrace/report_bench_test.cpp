// The page has no external resources; it has a bar for every test, curves for every latency, and every figure in a table. A
// file that is not a bench's JSON is refused.
#include <terrace/examples/terrace/report/report_bench.h>

#include <gmock/gmock.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string page_of(const std::string& json) {
  const ScratchFolder scratch;
  const auto page = write_bench_report(scratch.write("disk.json", json));
  EXPECT_EQ(scratch / "disk.html", page);
  return scratch.read("disk.html");
}

constexpr const char* kNvme = R"({"machine": {"cpu": "A & B <C>", "cores": 2}, "results": [
  {"op": "read", "block_bytes": 8388608, "queue_depth": 32, "threads": 1, "gb_per_s": 3.02, "p50_us": 80000.5, "p99_us": 91000,
   "p999_us": 92000, "cpu_s_per_gib": 0.003, "runs": 5, "spread": 0.04},
  {"op": "write", "block_bytes": 8388608, "queue_depth": 32, "threads": 1, "gb_per_s": 6.1, "p50_us": 40000, "p99_us": 41000,
   "p999_us": 42000, "cpu_s_per_gib": 0.003, "runs": 5, "spread": 0.04}]})";

TEST(BenchReport, HasABarACurveAndARowForEveryTest) {
  const auto page = page_of(kNvme);
  EXPECT_EQ(2U, count(page, "class='span c-compute'"));
  EXPECT_EQ(2U, count(page, "class='line'"));
  EXPECT_EQ(3U, count(page, "<tr>"));
  for (const auto* const part :
       {"read, 8.00 MiB × 32 × 1", "GB/s", "p99.9", "A &amp; B &lt;C&gt;", "cpu_s_per_gib", "3.020", " ms</text>"})
    EXPECT_THAT(page, HasSubstr(part));
  for (const auto* const part : {"http://", "https://", "<script", "nan", "inf"}) EXPECT_THAT(page, Not(HasSubstr(part)));
}

TEST(BenchReport, ATestOfSecondsHasACurveOverThem) {
  const auto page = page_of(R"({"machine": {"block_devices": [{"name": "vda"}]}, "results": [
    {"op": "write", "gb_per_s": 2.0, "runs": 1, "spread": 0, "time_axis": [
      {"run": 1, "at_s": 0, "seconds": 1, "bytes": 3000000000, "p50_us": 1}, {"run": 1, "at_s": 1, "seconds": 1, "bytes": 0, "p50_us": null},
      {"run": 1, "at_s": 2, "seconds": 1, "bytes": 1000000000, "p50_us": 1}, {"run": 1, "at_s": 3, "seconds": 0.01, "bytes": 9000000000}]},
    {"op": "read", "gb_per_s": 2.0, "runs": 1, "spread": 0, "time_axis": [{"run": 1, "at_s": 0, "seconds": 0.4, "bytes": 800000000}]}]})");
  EXPECT_THAT(page, HasSubstr("speed by second"));
  EXPECT_EQ(1U, count(page, "class='line'")) << "less than three seconds are no curve";
  for (const auto* const part : {"time_axis", "block_devices", "at_s"}) EXPECT_THAT(page, Not(HasSubstr(part)));
  EXPECT_THAT(page_of(kNvme), Not(HasSubstr("speed by second")));
}

TEST(BenchReport, RowsOfALinkAreToldApart) {
  const auto page = page_of(R"({"machine": {}, "results": [
    {"op": "upload", "host_memory": "pinned", "numa_node": 0, "copy_bytes": 65536, "gb_per_s": 2.5, "runs": 3, "spread": 0},
    {"op": "upload", "host_memory": "pageable", "numa_node": 1, "copy_bytes": 65536, "gb_per_s": 1.5, "runs": 3, "spread": 0},
    {"op": "upload_to_all", "gpu": "cuda:1", "host_memory": "pinned", "copy_bytes": 1048576, "gb_per_s": 20, "runs": 3, "spread": 0}]})");
  for (const auto* const name :
       {"upload, pinned, 64.0 KiB, node 0", "upload, pageable, 64.0 KiB, node 1", "upload_to_all, cuda:1, pinned, 1.00 MiB"})
    EXPECT_THAT(page, HasSubstr(std::string(">") + name + "<"));
}

TEST(BenchReport, SeveralBenchesAreSections) {
  const auto page = page_of(R"({"machine": {}, "results": [
    {"bench": "ram", "op": "read", "threads": 1, "gb_per_s": 20.5, "runs": 3, "spread": 0},
    {"bench": "residency", "policy": "lru", "tier": "device", "memory_bytes": 4096, "hit_rate": 0.5, "runs": 1, "spread": 0},
    {"bench": "optimizer", "optimizer": "adamw", "recipe": "fp32", "threads": 2, "gb_per_s": 0, "runs": 3, "spread": 0}]})");
  for (const auto* const part : {"ram: GB/s", "residency: of the accesses hit", "optimizer: GB/s", "adamw, fp32, threads: 2"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("latency")));
}

TEST(BenchReport, ThePageDoesNotReplaceWhatItIsMadeOf) {
  const ScratchFolder scratch;
  const auto file = scratch.write("results.html", kNvme);
  EXPECT_THAT(test::refusal_of([&] { (void)write_bench_report(file); }), HasSubstr("results.html has the name of the page"));
  EXPECT_EQ(kNvme, scratch.read("results.html"));
}

TEST(BenchReport, WhatIsNoResultIsRefused) {
  const ScratchFolder scratch;
  for (const auto* const text : {"", "[]", "{}", "nonsense", R"({"machine": {}, "results": []})",
                                 R"({"machine": {}, "results": [1]})", R"({"machine": 1, "results": [{}]})"}) {
    EXPECT_THAT(test::refusal_of([&] { (void)write_bench_report(scratch.write("bad.json", text)); }), HasSubstr("bad.json"))
        << text;
  }
}

}  // namespace
}  // namespace terrace::cli
