#include <terrace/tests/cuda/step_launches.h>

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/device.h>
#include <terrace/core/cuda/kernels/attention_warpgroup_launch.h>
#include <terrace/core/cuda/math/kernel_math.h>
#include <terrace/core/math/math_call.h>
#include <terrace/memory/eviction.h>
#include <terrace/optimizers/cuda/cuda_optimizer.h>
#include <terrace/optimizers/cuda/update_launch.h>
#include <terrace/parallel/run/compute.h>
#include <terrace/parallel/walk/walk.h>
#include <terrace/tests/support/gpu/fake_cuda.h>

namespace terrace::test {
namespace {

// The address of the device's tier: far from all memory of this process, and aligned like an arena.
std::byte* const kNowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 50U);

struct CountingLauncher {
  template <class Kernel, class Args>
  void run(const cuda::LaunchShape&, const Args&) const {
    ++counts.kernels[operation];
  }
  [[nodiscard]] cuda::CudaStreamHandle stream() const { return on; }
  [[nodiscard]] static std::size_t shared_bytes() { return 227 * kKiB; }
  StepLaunches& counts;
  const char* operation;
  cuda::CudaStreamHandle on;
  cuda::Workspace workspace;
};

class CountingBackend {
 public:
  CountingBackend(StepLaunches& counts, bool warpgroups) : counts_(counts), warpgroups_(warpgroups) {}

  CountingLauncher launcher(const char* operation, cuda::CudaStreamHandle stream, const cuda::Workspace& workspace) {
    return {counts_, operation, stream, workspace};
  }
  void matmul(Stream& stream, const cuda::Workspace&, MatrixView, MatrixView, Transpose, MatrixView, Transpose, TensorView bias,
              Accumulate) {
    if (!bias.empty()) throw std::logic_error("count_launches: a product with a bias");
    cuda::cuda_stream(stream).launch([this](cuda::CudaStreamHandle) { ++counts_.products; });
  }
  [[nodiscard]] static bool has_float8() { return true; }
  void matmul_float8(Stream& stream, const cuda::Workspace&, MatrixView, TensorView, TensorView, TensorView, TensorView,
                     TensorView, Accumulate) {
    cuda::cuda_stream(stream).launch([this](cuda::CudaStreamHandle) { ++counts_.products; });
  }
  void attention(const CountingLauncher& launcher, const AttentionShape& s, TensorView out, TensorView lse, TensorView qkv) {
    if (warpgroups_ && cuda::warpgroups_serve(qkv.dtype, s)) return cuda::attention_of_warpgroups(launcher, s, out, lse, qkv);
    cuda::ops::AllOps<CountingLauncher>::attention(launcher, s, out, lse, qkv);
  }
  void attention_grad(const CountingLauncher& launcher, const AttentionShape& s, TensorView dqkv, TensorView dout,
                      TensorView out, TensorView lse, TensorView qkv) {
    if (warpgroups_ && cuda::warpgroups_serve(qkv.dtype, s))
      return cuda::attention_grad_of_warpgroups(launcher, s, dqkv, dout, out, lse, qkv);
    cuda::ops::AllOps<CountingLauncher>::attention_grad(launcher, s, dqkv, dout, out, lse, qkv);
  }
  [[nodiscard]] static std::string algorithms() { return {}; }

 private:
  StepLaunches& counts_;
  const bool warpgroups_;
};

// Counts the bytes of each operation, and hands it on.
class MeasuringMath final : public Math {
 public:
  MeasuringMath(std::unique_ptr<Math> math, StepLaunches& counts) : math_(std::move(math)), counts_(counts) {}

  void enqueue(Stream& stream, const math::MathCall& some) override {
    math::visit(some, [&](const auto& call) { counts_.bytes[call.kName] += bytes_of(call); });
    math_->enqueue(stream, some);
  }

 private:
  template <class Call>
  static std::uint64_t bytes_of(const Call& call) {
    std::uint64_t written = 0, read = 0;
    // These also read what they write.
    bool adds = std::is_same_v<Call, math::CallOf<&Math::rotary>> || std::is_same_v<Call, math::CallOf<&Math::narrow_in_place>>;
    int tensors = 0;
    const auto look_at = [&]<class Argument>(const Argument& argument) {
      if constexpr (std::is_same_v<Argument, Accumulate>) adds = argument == Accumulate::yes;
      const auto add = [&](const TensorView& view) {
        (tensors++ < Call::kOutputs ? written : read) += view.empty() ? 0 : view.bytes();
      };
      if constexpr (std::is_same_v<Argument, TensorView>) add(argument);
      if constexpr (std::is_same_v<Argument, MatrixView>) add(argument.view);
    };
    call.apply([&](const auto&... arguments) { (look_at(arguments), ...); });
    if (std::is_same_v<Call, math::CallOf<&Math::quantise>>) read *= 2;  // for the scale, and for the codes
    if constexpr (std::is_same_v<Call, math::CallOf<&Math::embed>>) {
      const auto& [y, tokens, table, positions, seq, first] = call.arguments;
      return 2 * y.bytes() + tokens.bytes() + (positions.empty() ? 0 : y.bytes());
    }
    return written + read + (adds ? written : 0);
  }

  const std::unique_ptr<Math> math_;
  StepLaunches& counts_;
};

// Counts what the executor and the mover would do with their streams; the plan's walk gives the step.
class CountingSink final : public walk::Sink {
 public:
  CountingSink(const StepMap& map, Device& device, const Optimizer& optimizer, StepLaunches& counts)
      : counts_(counts),
        stream_(device.make_stream("compute")),
        compute_({.device = &device, .streams = streams_of(*stream_), .map = &map, .optimizer = &optimizer}),
        tokens_(static_cast<std::size_t>(map.options().shape.batch.tokens()) * map.micro_batches()) {}

  void begin() { compute_.begin(input_ = {.tokens = tokens_, .targets = tokens_}); }
  void end() {
    compute_.share_results(Compute::Share::step);
    stream_->synchronize();
  }
  bool issues = false;  // false: actions are ignored

  void move(const Move& move) override {
    const auto lane = lane_of(move.from, move.to);
    if (!issues || (lane != Lane::upload && lane != Lane::download)) return;
    note_waits(lane, move.after);
    counts_.copies += ceil_div(move.bytes, std::uint64_t{cuda::CudaPieces{}.copy_bytes});
    ++counts_.events;
  }
  void compute(const Action& action, std::span<const Use> uses, const memory::Residency::Granted& granted, Lane lane,
               std::uint64_t) override {
    if (!issues) return;
    note_waits(lane, granted.after);
    if (lane != Lane::compute) return;
    const auto mark = [&] { stream_->then([](const std::exception_ptr&) {}); };
    mark();
    mark();
    compute_.enqueue(action, uses, granted.offsets, kNowhere);
    mark();
  }

 private:
  static std::array<Stream*, kLanes> streams_of(Stream& compute) {
    std::array<Stream*, kLanes> streams{};
    streams[index(Lane::compute)] = &compute;
    return streams;
  }
  void note_waits(Lane own, const Clock& after) {
    for (std::size_t i = 0; i < kLanes; ++i) counts_.waits += i != index(own) && after.at[i] != 0 ? 1 : 0;
  }

  StepLaunches& counts_;
  const std::unique_ptr<Stream> stream_;
  StepInput input_;
  Compute compute_;
  const std::vector<std::int32_t> tokens_;
};

}  // namespace

std::uint64_t StepLaunches::launches() const {
  auto all = products;
  for (const auto& [operation, count] : kernels) all += count;
  return all;
}

std::uint64_t StepLaunches::pointwise_bytes() const {
  std::uint64_t all = 0;
  for (const auto& [operation, count] : bytes)
    if (operation != "matmul" && !operation.starts_with("attention")) all += count;
  return all;
}

StepLaunches count_launches(const Model& model, const Plan& plan, const std::string& optimizer_name, bool warpgroups) {
  StepLaunches counts;
  ThreadPool pool(1);
  const auto fake = std::make_shared<FakeCuda>(FakeCuda::Options{.pageable_copies = true});
  const auto device = cuda::make_device_on(fake, pool, {}, [&](cuda::CudaRuntime&, Device& made) {
    return std::make_unique<MeasuringMath>(std::make_unique<cuda::KernelMath<CountingBackend>>(made, counts, warpgroups),
                                           counts);
  });
  const auto optimizer = rules::make_cuda_optimizer(
      optimizer_name, {},
      [&](cuda::CudaStreamHandle stream, std::string_view name, const OptimizerSettings& settings, const UpdateStep& step,
          const ChunkUpdate& chunk) {
        cuda::launch_update(CountingLauncher{counts, "update", stream, {}}, {}, name, settings, step, chunk);
      });

  const StepMap map(model, plan.map);
  if (map.mesh().size() != 1) throw std::logic_error("count_launches: several ranks");
  memory::Belady policy;
  memory::Residency residency(plan.capacity, policy, plan.generations);
  map.chunks().add_to(residency);
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
    if (map.committed(ChunkId(c))) residency.reserve_on_disk(ChunkId(c));
  walk::Walk walk(map, residency, policy);
  CountingSink sink(map, *device, *optimizer, counts);

  const auto& programs = plan.programs;
  walk.run(programs.fill, sink);
  walk.run(programs.first, sink);
  walk.run(programs.steady, sink);
  sink.begin();
  sink.end();
  counts = {};
  const auto copies = fake->count(FakeCuda::Call::copy_async), events = fake->count(FakeCuda::Call::record_event);
  sink.issues = true;
  sink.begin();
  walk.run(programs.steady, sink);
  sink.end();
  counts.copies += fake->count(FakeCuda::Call::copy_async) - copies;
  counts.events += fake->count(FakeCuda::Call::record_event) - events;
  return counts;
}

}  // namespace terrace::test
