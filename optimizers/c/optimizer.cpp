#include <memory>

#include <terrace/optimizers/c/device.h>
#include <terrace/optimizers/c/guard.h>
#include <terrace/optimizers/state/optimizer_state.h>

namespace terrace::c {
namespace {

OptimizerStateOptions state_options(const terrace_optimizer_options& options, const terrace_chunks_options& tiers,
                                    Device& device) {
  OptimizerStateOptions result;
  result.tiers = offload_options(tiers, device);
  if (options.optimizer) result.optimizer = options.optimizer;
  if (options.recipe) result.recipe = options.recipe;
  result.chunk_elements = options.chunk_elements;
  result.seed = options.seed;
  if (options.settings) {
    const auto s = known(options.settings, "terrace_optimizer_settings");
    result.settings = {s.beta1, s.beta2, s.eps, s.weight_decay, s.momentum, s.nesterov != 0};
  }
  return result;
}

DType dtype_of_c(terrace_dtype dtype) {
  switch (dtype) {
    case TERRACE_FP32: return DType::fp32;
    case TERRACE_BF16: return DType::bf16;
    case TERRACE_FP64: return DType::fp64;
    case TERRACE_FP16: return DType::fp16;
    default:
      throw Error("dtype " + std::to_string(dtype) + " is unknown\n  give TERRACE_FP32, _BF16, _FP64 or _FP16",
                  ErrorKind::refused);
  }
}

Shape shape_of(const std::string& name, const int64_t* shape, size_t rank) {
  if (rank < 1 || rank > 4)
    throw Error(name + " has " + std::to_string(rank) + " dimensions\n  give it one to four", ErrorKind::refused);
  const auto* const d = &there(shape, "shape");
  for (std::size_t i = 0; i < rank; ++i)
    if (d[i] <= 0)
      throw Error(name + " has " + std::to_string(d[i]) + " in its shape\n  give positive sizes", ErrorKind::refused);
  switch (rank) {
    case 1: return {d[0]};
    case 2: return {d[0], d[1]};
    case 3: return {d[0], d[1], d[2]};
    default: return {d[0], d[1], d[2], d[3]};
  }
}

}  // namespace
}  // namespace terrace::c

struct terrace_optimizer {
  terrace_optimizer(const terrace_optimizer_options& options, const terrace_chunks_options& tiers)
      : device(tiers), state(terrace::c::state_options(options, tiers, device.device())) {}
  terrace::c::HandleDevice device;
  terrace::OptimizerState state;
};

using namespace terrace::c;

extern "C" {

terrace_status terrace_optimizer_default_settings(terrace_optimizer_settings* settings) {
  return guarded([&] {
    const terrace::OptimizerSettings s;
    give(terrace_optimizer_settings{0, s.beta1, s.beta2, s.eps, s.weight_decay, s.momentum, s.nesterov ? 1 : 0}, settings,
         "terrace_optimizer_settings");
  });
}

terrace_status terrace_optimizer_create(const terrace_optimizer_options* options, terrace_optimizer** optimizer) {
  return guarded([&] {
    auto& result = there(optimizer, "the place for the optimizer");
    const auto given = known(options, "terrace_optimizer_options");
    result = std::make_unique<terrace_optimizer>(given, known(given.tiers, "terrace_chunks_options")).release();
  });
}

void terrace_optimizer_destroy(terrace_optimizer* optimizer) { delete optimizer; }

terrace_status terrace_optimizer_add(terrace_optimizer* optimizer, const terrace_tensor* tensor) {
  return guarded([&] {
    const auto given = known(tensor, "terrace_tensor");
    const std::string name = &there(given.name, "name");
    const auto shape = shape_of(name, given.shape, given.rank);
    auto* const weight = &there(static_cast<std::byte*>(given.weight), "weight");
    auto* const gradient = &there(static_cast<std::byte*>(given.gradient), "gradient");
    there(optimizer, "optimizer")
        .state.add(name, {weight, dtype_of_c(given.weight_dtype), shape}, {gradient, dtype_of_c(given.gradient_dtype), shape},
                   {.hidden = given.not_hidden == 0,
                    .rate = given.rate == 0 ? 1 : given.rate,
                    .decay = given.without_decay == 0 ? 1.0 : 0.0});
  });
}

terrace_status terrace_optimizer_step(terrace_optimizer* optimizer, const terrace_step* step, terrace_step_result* result) {
  return guarded([&] {
    auto& handle = there(optimizer, "optimizer");
    const auto given = known(step, "terrace_step");
    if (result) known(result, "terrace_step_result");  // before anything changes
    const terrace::OptimizerState::Step wanted{given.rate, given.clip, given.gradient_scale == 0 ? 1 : given.gradient_scale};
    auto* const stream = handle.device.stream(given.stream);
    const auto done = stream ? handle.state.step(wanted, *stream) : handle.state.step(wanted);
    if (result) give(terrace_step_result{0, done.norm.value_or(0), done.applied ? 1 : 0}, result, "terrace_step_result");
  });
}

terrace_status terrace_optimizer_commit(terrace_optimizer* optimizer, uint64_t n) {
  return guarded([&] { there(optimizer, "optimizer").state.commit(n); });
}

terrace_status terrace_optimizer_last_commit(terrace_optimizer* optimizer, uint64_t* n) {
  return guarded([&] { there(n, "n") = there(optimizer, "optimizer").state.committed_step(); });
}
}
