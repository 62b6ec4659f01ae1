// Rates of the device's math: the products of GPT-2's layers and the other operations, by dtype and by tokens per micro-batch.
//
//   math_bench --benchmark_filter=matmul/bf16          (Google Benchmark's flags; TERRACE_BENCH_THREADS sets the pool)
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/math.h>
#include <terrace/core/math/philox.h>

namespace {

using namespace terrace;

struct Machine {
  ThreadPool pool{std::getenv("TERRACE_BENCH_THREADS") ? std::atoi(std::getenv("TERRACE_BENCH_THREADS")) : 0};
  std::unique_ptr<Device> device = make_cpu_device(pool);
  std::unique_ptr<Stream> stream = device->make_stream("bench");
};

Machine& machine() {
  static Machine m;
  return m;
}

// The operands of one benchmark, filled with small normal numbers; they live as long as the benchmark runs.
class Operands {
 public:
  TensorView make(DType dtype, Shape shape) {
    TensorView view{nullptr, dtype, shape};
    slabs_.push_back(machine().device->memory().allocate(round_up(view.bytes(), kPageBytes)));
    view.data = slabs_.back().data();
    std::vector<float> normal(static_cast<std::size_t>(view.elements()));
    math::fill_normal(normal.data(), view.elements(), 1, slabs_.size(), 0, 0.1);
    for (std::int64_t i = 0; i < view.elements(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (dtype == DType::fp32) view.as<float>()[i] = normal[at];
      if (dtype == DType::bf16) view.as<bf16>()[i] = bf16(normal[at]);
      if (dtype == DType::i32) view.as<std::int32_t>()[i] = static_cast<std::int32_t>(math::random_below(1, 2, at, 50257));
    }
    return view;
  }

 private:
  std::vector<Slab> slabs_;
};

using Enqueue = std::function<void(Stream&, Math&)>;

// `work` per call: FLOPs or bytes, shown as a rate.
void measure(benchmark::State& state, const char* unit, double work, const Enqueue& enqueue) {
  auto& m = machine();
  enqueue(*m.stream, m.device->math());  // the first call builds kernels
  m.stream->synchronize();
  for (auto _ : state) {
    enqueue(*m.stream, m.device->math());
    m.stream->synchronize();
  }
  state.counters[unit] = benchmark::Counter(work, benchmark::Counter::kIsIterationInvariantRate);
}

void add(const std::string& name, std::function<void(benchmark::State&)> run) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(run))->Unit(benchmark::kMicrosecond)->UseRealTime();
}

void add_product(DType dtype, const char* use, std::int64_t m, std::int64_t n, std::int64_t k, Transpose ta, Transpose tb,
                 DType out, Accumulate accumulate) {
  add(fmt::format("matmul/{}/{}/{}x{}x{}", name_of(dtype), use, m, n, k), [=](benchmark::State& state) {
    Operands o;
    const auto a = o.make(dtype, ta == Transpose::yes ? Shape{k, m} : Shape{m, k});
    const auto b = o.make(dtype, tb == Transpose::yes ? Shape{n, k} : Shape{k, n});
    const auto c = o.make(out, {m, n});
    measure(state, "FLOP/s", 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
            [&](Stream& s, Math& math) { math.matmul(s, c, a, ta, b, tb, {}, accumulate); });
  });
}

void add_products(DType dtype) {
  using enum Transpose;
  add_product(dtype, "square", 2048, 2048, 2048, no, no, DType::fp32, Accumulate::no);
  constexpr std::pair<std::int64_t, std::int64_t> layers[] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}};
  for (const std::int64_t tokens : {256, 2048})
    for (const auto& [in, out] : layers) {
      add_product(dtype, "forward", tokens, out, in, no, no, dtype, Accumulate::no);
      add_product(dtype, "input_grad", tokens, in, out, no, yes, dtype, Accumulate::no);
      add_product(dtype, "weight_grad", in, out, tokens, yes, no, DType::fp32, Accumulate::yes);
    }
  add_product(dtype, "head", 256, 50257, 768, no, yes, dtype, Accumulate::no);
}

void add_operation(const std::string& name, DType dtype, std::int64_t tokens, double elements_moved,
                   std::function<Enqueue(Operands&)> prepare) {
  add(fmt::format("{}/{}/{}", name, name_of(dtype), tokens), [=](benchmark::State& state) {
    Operands o;
    measure(state, "B/s", elements_moved * static_cast<double>(size_of(dtype)), prepare(o));
  });
}

void add_operations(DType dtype, std::int64_t n) {
  constexpr std::int64_t c = 768, f = 4 * c;
  const auto nc = static_cast<double>(n * c), nf = static_cast<double>(n * f);
  add_operation("norm", dtype, n, 2 * nc, [=](Operands& o) -> Enqueue {
    return
        [y = o.make(dtype, {n, c}), mean = o.make(DType::fp32, {n}), rstd = o.make(DType::fp32, {n}), x = o.make(dtype, {n, c}),
         gain = o.make(dtype, {c})](Stream& s, Math& math) { math.norm(s, y, mean, rstd, x, gain, gain, 1e-5); };
  });
  add_operation("gelu", dtype, n, 2 * nf, [=](Operands& o) -> Enqueue {
    return [y = o.make(dtype, {n, f}), x = o.make(dtype, {n, f})](Stream& s, Math& math) {
      math.activation(s, Activation::gelu_tanh, y, x);
    };
  });
  add_operation("gelu_grad", dtype, n, 3 * nf, [=](Operands& o) -> Enqueue {
    return [dx = o.make(dtype, {n, f}), dy = o.make(dtype, {n, f}), x = o.make(dtype, {n, f})](Stream& s, Math& math) {
      math.activation_grad(s, Activation::gelu_tanh, dx, dy, x);
    };
  });
  add_operation("add", dtype, n, 3 * nc, [=](Operands& o) -> Enqueue {
    return [y = o.make(dtype, {n, c}), x = o.make(dtype, {n, c}), r = o.make(dtype, {n, c})](Stream& s, Math& math) {
      math.add(s, y, x, r);
    };
  });
  add_operation("sum_of_squares", dtype, n, nc, [=](Operands& o) -> Enqueue {
    return [sums = o.make(DType::fp64, {square_blocks(n * c, kSumBlock)}), x = o.make(dtype, {n, c})](Stream& s, Math& math) {
      math.sum_of_squares(s, sums, x);
    };
  });
  add_operation("attention", dtype, n, 4 * nc, [=](Operands& o) -> Enqueue {
    const AttentionShape shape{n / 64, 64, 12, 12, 64};
    return [shape, out = o.make(dtype, {n, c}), lse = o.make(DType::fp32, {n * 12}), qkv = o.make(dtype, {n, 3 * c})](
               Stream& s, Math& math) { math.attention(s, shape, out, lse, qkv); };
  });
  add_operation("attention_grad", dtype, n, 8 * nc, [=](Operands& o) -> Enqueue {
    const AttentionShape shape{n / 64, 64, 12, 12, 64};
    return [shape, dqkv = o.make(dtype, {n, 3 * c}), dout = o.make(dtype, {n, c}), out = o.make(dtype, {n, c}),
            lse = o.make(DType::fp32, {n * 12}), qkv = o.make(dtype, {n, 3 * c})](Stream& s, Math& math) {
      math.attention_grad(s, shape, dqkv, dout, out, lse, qkv);
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const auto dtype : {DType::fp32, DType::bf16}) {
    add_products(dtype);
    for (const std::int64_t n : {256, 2048}) add_operations(dtype, n);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
