// Settings that must not change a bit of a training run, and the models trained with them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include <fmt/format.h>

#include <terrace/examples/terrace/config/options.h>
#include <terrace/tests/support/covering_rows.h>
#include <terrace/tests/train/train_run.h>

namespace terrace::test {

// A model; its bits are only compared with its own.
struct TinyModel {
  const char* family;
  const char* dtype;
  bool untied;
  bool skips = false;
  [[nodiscard]] std::string name() const {
    return fmt::format("{} {} {}{}", family, dtype, untied ? "untied" : "tied", skips ? ", with skips" : "");
  }
};
inline constexpr std::array kModels{
    TinyModel{"gpt2", "fp32", false},  TinyModel{"llama", "bf16", true},        TinyModel{"gpt2", "bf16", false},
    TinyModel{"llama", "fp32", false}, TinyModel{"gpt2", "fp32", true},         TinyModel{"llama", "bf16", false},
    TinyModel{"gpt2", "bf16", true},   TinyModel{"llama", "fp32", true},        TinyModel{"llama", "fp64", false},
    TinyModel{"gpt2", "fp16", false},  TinyModel{"llama", "bf16", false, true}, TinyModel{"gpt2", "fp32", true, true},
};

// Where the bytes are.
enum class Place : std::uint8_t {
  in_device,      // everything, including updates
  in_host,        // the smallest legal device; the host holds the rest
  moments_below,  // the smallest legal device; the host holds everything but the optimizer's states
  thin_host,      // half of the state fits into the device, almost nothing into the host; the other half is on the disk
  on_disk,        // the smallest legal device and a thin host
};
inline constexpr std::array kPlaces{Place::in_device, Place::in_host, Place::moments_below, Place::thin_host, Place::on_disk};
inline const char* name_of(Place place) {
  constexpr std::array kNames{"in the device", "in the host", "moments below", "thin host", "on disk"};
  return kNames[static_cast<std::size_t>(place)];
}

// One row of the covering array, factor by factor.
struct Setting {
  TinyModel model;
  Place place;
  const char* depth;
  int threads;
  const char* order;  // "grouped": the vertical order in groups of two
  const char* recompute;
  const char* activations;
  bool interrupted;  // evaluations and commits between the steps

  [[nodiscard]] std::string name() const {
    return fmt::format("{}, {}, depth {}, {} threads, {}, recompute {}, activations {}{}", model.name(), name_of(place), depth,
                       threads, order, recompute, activations, interrupted ? ", interrupted" : "");
  }
};
inline constexpr std::array kDepths{"0", "1", "4", "auto"};
inline constexpr std::array kOrders{"horizontal", "vertical", "grouped", "auto"};
inline constexpr std::array kRecomputes{"none", "layer", "2", "auto"};
inline constexpr std::array kActivations{"keep", "offload", "3", "auto"};

inline std::vector<Setting> covering_settings(std::size_t strength) {
  const CoveringRows rows(
      {static_cast<int>(kModels.size()), static_cast<int>(kPlaces.size()), static_cast<int>(kDepths.size()), 2,
       static_cast<int>(kOrders.size()), static_cast<int>(kRecomputes.size()), static_cast<int>(kActivations.size()), 2},
      strength);
  std::vector<Setting> all;
  for (const auto& row : rows.rows()) {
    const auto at = [&](std::size_t factor) { return static_cast<std::size_t>(row[factor]); };
    all.push_back({kModels[at(0)], kPlaces[at(1)], kDepths[at(2)], 1 + row[3], kOrders[at(4)], kRecomputes[at(5)],
                   kActivations[at(6)], row[7] == 1});
  }
  return all;
}

// Everything in the device and no optimizations: the reference for the others.
inline cli::RunConfig config_of(const TinyModel& model, const std::filesystem::path& corpus) {
  cli::RunConfig c;
  c.data.format = cli::DataFormat::bytes;
  c.model.family = lm::family_named(model.family);
  c.model.dtype = parse_dtype(model.dtype);
  c.model.tied = !model.untied;
  c.model.layers = long_form() ? 4 : model.skips ? 3 : 2;
  c.model.skips = model.skips ? layers::SkipShape::u : layers::SkipShape::none;
  c.model.hidden = long_form() ? 128 : 32;
  c.model.heads = 4;
  c.model.kv_heads = std::string(model.family) == "llama" ? 2 : 0;
  c.model.seq_len = long_form() ? 64 : 32;
  c.data.files = {corpus};
  c.train.batch_size = 2;
  c.train.grad_accumulation = 4;
  c.train.steps = 20;
  c.train.lr = 3e-3;
  c.train.min_lr = 3e-4;
  c.train.grad_clip = 0.7;
  c.train.warmup = 3;
  c.train.eval_batches = 2;
  c.run.threads = 1;
  c.memory.device_memory = c.memory.host_memory = "unlimited";
  c.plan.prefetch_depth = 0;
  c.plan.order = Order::horizontal;
  c.plan.recompute = c.plan.activations = 0;
  c.plan.assumed_costs = true;  // nothing is measured before the start
  return c;
}

// A host with little more memory than the largest buffer.
inline std::uint64_t thin_host_bytes(cli::RunConfig config) {
  const auto model = lm::make_model(cli::model_config(config));
  const auto request = cli::plan_request(config);
  const StepMap map(model, {.recipe = rules::Recipe::of(model.dtype, request.recipe, request.states),
                            .shape = request.shape,
                            .activations = choose_activations(model, request.shape.batch, request.recompute.value_or(0),
                                                              request.offload.value_or(0)),
                            .layer_unit = request.layer_unit});
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c) bytes = std::max(bytes, map.chunks()[ChunkId{c}].bytes);
  for (;; bytes = round_up(bytes + bytes / 4, kPageBytes)) {
    config.memory.host_memory = std::to_string(bytes);
    if (plan_of(config).fits) return bytes;
  }
}

inline void put(cli::RunConfig& config, Place place, const std::filesystem::path& disk) {
  if (place == Place::in_device) return;
  const auto wide = plan_of(config);
  const auto smallest = wide.smallest_bytes[Tier::device];  // printed by `terrace plan`
  config.memory.device_memory = std::to_string(smallest);
  if (place == Place::in_host) return;
  config.memory.nvme_path = {disk};
  if (place == Place::thin_host) config.memory.device_memory = std::to_string(std::max(smallest, wide.state_bytes / 2));
  const auto thin = thin_host_bytes(config);
  if (place != Place::moments_below) {
    config.memory.host_memory = std::to_string(thin);
    return;
  }
  const auto& recipe = wide.map.recipe;
  std::uint64_t all = 0, kept = 0;
  for (const auto kind : recipe.kinds()) {
    const auto bytes = recipe.chunk_bytes(kind, wide.map.chunk_elements);
    all += bytes;
    if (kind == ChunkKind::parameter || kind == ChunkKind::gradient) kept += bytes;
  }
  config.memory.host_memory = std::to_string(round_up(wide.state_bytes * kept / all + thin, kPageBytes));
}

inline cli::RunConfig config_of(const Setting& s, const std::filesystem::path& corpus, const std::filesystem::path& disk) {
  auto c = config_of(s.model, corpus);
  c.run.threads = s.threads;
  const bool grouped = std::string(s.order) == "grouped";
  c.plan.group = grouped ? 2 : 0;
  for (const auto& [key, text] : {std::pair{"prefetch-depth", s.depth}, std::pair{"order", grouped ? "vertical" : s.order},
                                  std::pair{"recompute", s.recompute}, std::pair{"activations", s.activations}})
    cli::apply_set(c, fmt::format("{}={}", key, text));
  if (s.interrupted) {
    c.train.eval_interval = 7;
    c.run.ckpt_interval = 5;
  }
  put(c, s.place, disk);
  return c;
}

}  // namespace terrace::test
