// The results of `terrace bench nvme`: figures of several runs of one test, as a row of the table and of the JSON.
//
// Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/bench/disk/block_device.h>
#include <terrace/bench/disk/disk_job.h>
#include <terrace/bench/session.h>

namespace terrace::bench {

// What a row is about.
struct NvmeTest {
  std::string op;
  std::string path = {};  // with several paths; "all" for their sum. Empty: there is only one
  int numa_node = -1;     // of a NUMA sweep; -1: none
  DiskShape shape;
  std::uint64_t parts = 0;  // the requests that reach the disk for a block; 0: unknown
};

class NvmeFigures {
 public:
  void add(const DiskRun& run);
  [[nodiscard]] bool empty() const { return gb_per_s_.empty(); }
  [[nodiscard]] const std::vector<double>& gb_per_s() const { return gb_per_s_; }
  [[nodiscard]] const std::vector<double>& cpu_s_per_gib() const { return cpu_s_per_gib_; }
  // `own_cpu`: the process did nothing else while the clock ran.
  [[nodiscard]] Result row(const NvmeTest& test, bool own_cpu) const;

 private:
  std::vector<double> gb_per_s_, iops_, p50_us_, p99_us_, p999_us_, cpu_s_per_gib_;
  Result axis_ = Result::array();  // the seconds of all runs
};

}  // namespace terrace::bench
