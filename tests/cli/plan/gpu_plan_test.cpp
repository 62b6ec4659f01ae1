// Runs on a GPU that is not present, planned with its machine profile.
#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

// In the plainest order updates limit the speed, but the vertical order hides them; so their place must be chosen again for
// that order.
TEST_F(Cli, APlanMayPutUpdatesWhereTheFastestOrderWantsThem) {
  std::ofstream(at("h200.json")) << R"({"device": "cuda:0", "threads": 16, "measured_at": "2026-11-01T00:00:00",
    "matmul_fp32_flop_s": 4e13, "matmul_bf16_flop_s": 6.3e14, "matmul_fp64_flop_s": 3e13, "device_stream_bytes_s": 4e12,
    "upload_bytes_s": 5.3e10, "download_bytes_s": 5.3e10, "memory_copy_bytes_s": 2e10, "memory_stream_bytes_s": 1.2e11,
    "disk_read_bytes_s": 2e9, "disk_write_bytes_s": 1.2e9, "disk_both_bytes_s": 2.2e9, "disk_latency_s": 1e-4,
    "compute_beside_copy": 1, "compute_beside_disk": 1})";
  std::ofstream(at("tokens.u32"), std::ios::binary) << std::string(400'000, '\0');
  const auto step_s = [&](const std::string& update) {
    const auto words =
        flags(
            "plan --model llama --layers 6 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 32000 --seq-len 4096 "
            "--untied --device cuda:0 --dtype bf16 --recipe split --data-format u32 --data tokens.u32 --durability none "
            "--warmup 1 --grad-clip 0 --json --assumed-costs --batch-size 1 --grad-accumulation 8 --device-memory 5GiB "
            "--host-memory 22GiB --machine-profile h200.json --eval-batches 0") +
        Words{"--update", update};
    return nlohmann::json::parse(succeeded(terrace(words)).out).at("step_time_s").get<double>();
  };
  EXPECT_LE(step_s("auto"), 1.01 * std::min(step_s("host"), step_s("device")));
}

}  // namespace
}  // namespace terrace::test
