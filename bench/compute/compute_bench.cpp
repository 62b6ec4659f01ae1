// Computing: square matrix products of each dtype and size, and attention, by the device's own math.
#include <array>

#include <fmt/format.h>

#include <terrace/bench/host_benches.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/thread_counts.h>
#include <terrace/bench/timing.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/math.h>

namespace terrace::bench {
namespace {

constexpr std::array<std::int64_t, 3> kSizes{512, 1024, 2048};
constexpr AttentionShape kAttention{.batch = 1, .seq = 1024, .heads = 8, .kv_heads = 8, .head_dim = 64};

class ComputeBench final : public Bench {
 public:
  std::string_view name() const override { return "compute"; }
  std::string_view help() const override { return "matrix products and attention by dtype and size, in GFLOP/s"; }
  std::vector<Flag> flags() override {
    return {{"dtype", &dtype_, "of the operands", 1, 1, {"fp32", "bf16", "fp16", "fp64", "all"}},
            {"n", &n_, "rows and columns of the products; 0: several", 0, 65'536},
            {"threads", &threads_, "0: one thread, then all cores that this process may use", 0, 1024}};
  }

  void run(Session& session) override {
    for (const int threads : thread_counts(threads_)) {
      ThreadPool pool(threads);
      const auto device = make_cpu_device(pool);
      const auto stream = device->make_stream("bench");
      for (const auto dtype : {DType::fp32, DType::bf16, DType::fp16, DType::fp64}) {
        if (dtype_ != "all" && dtype_ != name_of(dtype)) continue;
        for (const auto n : kSizes) {
          if (n_ != 0 && n != kSizes.front()) continue;
          if (session.stopped()) return;
          product(session, *device, *stream, dtype, n_ == 0 ? n : n_);
        }
        if (!session.stopped()) attention(session, *device, *stream, dtype);
      }
    }
  }

 private:
  static void report(Session& session, const std::string& op, DType dtype, std::int64_t n, int threads, double flop,
                     const std::function<void()>& work) {
    const auto seconds = time_runs(session, fmt::format("{} {} {}, {} threads", op, name_of(dtype), n, threads), work);
    if (seconds.empty()) return;
    const auto gflop_per_s = rates(1e-9 * flop, seconds);
    session.result({{"op", op},
                    {"dtype", name_of(dtype)},
                    {"n", n},
                    {"threads", threads},
                    {"gflop_per_s", median(gflop_per_s)},
                    {"runs", gflop_per_s.size()},
                    {"spread", spread(gflop_per_s)}});
  }

  // The operands are zeros: dense kernels have no shortcut for them.
  static void product(Session& session, Device& device, Stream& stream, DType dtype, std::int64_t n) {
    const auto bytes = static_cast<std::size_t>(n * n) * size_of(dtype);
    const Slab slab = device.memory().allocate(3 * bytes);
    const TensorView a{slab.data(), dtype, {n, n}}, b{slab.data() + bytes, dtype, {n, n}},
        c{slab.data() + 2 * bytes, dtype, {n, n}};
    const auto size = static_cast<double>(n);
    report(session, "matmul", dtype, n, device.pool().threads(), 2 * size * size * size, [&] {
      device.math().matmul(stream, c, a, Transpose::no, b, Transpose::no);
      stream.synchronize();
    });
  }

  // Causal: half of the scores are computed, with two products each.
  static void attention(Session& session, Device& device, Stream& stream, DType dtype) {
    const auto& s = kAttention;
    const auto rows = s.batch * s.seq, width = s.heads * s.head_dim;
    const auto statistics = dtype == DType::fp64 ? DType::fp64 : DType::fp32;
    const auto out_bytes = static_cast<std::size_t>(rows * width) * size_of(dtype);
    const Slab slab = device.memory().allocate(4 * out_bytes + static_cast<std::size_t>(s.batch * s.heads * s.seq) * 8);
    const TensorView qkv{slab.data(), dtype, {rows, 3 * width}}, out{slab.data() + 3 * out_bytes, dtype, {rows, width}},
        lse{slab.data() + 4 * out_bytes, statistics, {s.batch, s.heads, s.seq}};
    const double flop = 2.0 * static_cast<double>(s.batch * s.heads * s.seq * s.seq * s.head_dim);
    report(session, "attention", dtype, s.seq, device.pool().threads(), flop, [&] {
      device.math().attention(stream, s, out, lse, qkv);
      stream.synchronize();
    });
  }

  std::string dtype_ = "all";
  std::int64_t n_ = 0, threads_ = 0;
};

}  // namespace

std::unique_ptr<Bench> make_compute_bench() { return std::make_unique<ComputeBench>(); }

}  // namespace terrace::bench
