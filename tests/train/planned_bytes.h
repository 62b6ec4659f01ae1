// Checks that a run moves the bytes that were planned.
#pragma once

#include <string>

#include <terrace/tests/train/train_run.h>

namespace terrace::test {

// The peaks and bytes of `terrace plan --json` must be those that the run measured.
inline void expect_planned(const Plan& p, const Trained& run, const std::string& what) {
  const auto json = cli::to_json(cli::RunConfig{}, p);
  EXPECT_EQ(run.planned, json) << what;
  for (std::size_t i = 0; i < p.step_traffic.size(); ++i) {
    const auto& m = run.steps.at(i);
    const auto& planned = p.step_traffic[i];
    EXPECT_EQ(m.read_bytes, planned.read) << what << ", step " << i + 1;
    EXPECT_EQ(m.write_bytes, planned.write) << what << ", step " << i + 1;
    EXPECT_EQ(m.h2d_bytes, planned.upload) << what << ", step " << i + 1;
    EXPECT_EQ(m.d2h_bytes, planned.download) << what << ", step " << i + 1;
  }
  const auto& last = run.steps.at(p.step_traffic.size() - 1);
  const nlohmann::json bytes{
      {"read", last.read_bytes}, {"write", last.write_bytes}, {"h2d", last.h2d_bytes}, {"d2h", last.d2h_bytes}};
  EXPECT_EQ(bytes, json["bytes"]) << what;
  EXPECT_EQ(run.peaks, json["peak_bytes"]) << what;
  // The last line is written before the last commit and the hash.
  const auto& end = run.steps.back();
  EXPECT_LE(end.device_peak_bytes, json["peak_bytes"]["device"]) << what;
  EXPECT_LE(end.host_peak_bytes, json["peak_bytes"]["host"]) << what;
  EXPECT_LE(end.nvme_peak_bytes, json["peak_bytes"]["nvme"]) << what;
}

}  // namespace terrace::test
