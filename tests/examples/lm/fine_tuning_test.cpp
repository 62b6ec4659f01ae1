// Adapters that an engine saves are those that it was given, on any ranks; the base comes from the model's directory.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/core/base/text_file.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/fine_tuning.h>
#include <terrace/examples/lm/models/weights.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/layers/parts/names.h>
#include <terrace/parallel/train/agree_on_plan.h>
#include <terrace/parallel/train/initial_weights.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

ModelConfig tiny(const char* family, std::int64_t experts) {
  ModelConfig config{.family = family_named(family), .layers = 2, .hidden = 16, .heads = 2, .ffn = 32, .seq_len = 8};
  config.vocab = 40;
  config.experts = {.count = experts, .chosen = 2};
  config.adapters = adapters_of(config.family, experts > 0, 3, 6, "all");
  return config;
}

struct Ranks {
  std::uint32_t data = 1, tensor = 1, expert = 1;
  std::string recipe = "fp32";
};

class FineTuning : public testing::Test {
 protected:
  // The directory of a base.
  fs::path base_of(const ModelConfig& config) {
    const auto directory = folder_ / "base";
    fs::create_directories(directory);
    const auto base = without_adapters(config);
    write_weight_files(directory, make_model(base), DType::fp32, ~std::uint64_t{0}, random_weights(7));
    return directory;
  }
  // Fills an engine on each rank, and saves its adapters to `to`. Returns the bytes of all other weights.
  std::map<std::string, std::vector<std::byte>> save(const ModelConfig& of_all, const Ranks& ranks, const fs::path& base,
                                                     const fs::path& adapters, const fs::path& to) {
    std::map<std::string, std::vector<std::byte>> frozen;
    run_ranks(static_cast<int>(ranks.data * ranks.tensor * ranks.expert), {}, [&](std::unique_ptr<Communicator> own) {
      ThreadPool pool(1);
      const auto device = make_cpu_device(pool);
      Agreement agreement(*own, *device);
      auto config = of_all;
      const auto rank = static_cast<std::uint32_t>(own->rank());
      config.place = {.mesh = {.shard = ranks.data, .expert = ranks.expert, .part = ranks.tensor}, .rank = rank};
      const auto model = make_model(config);
      PlanRequest request{.shape = {{1, 8}, 1}, .budget = {kUnlimited, kUnlimited}, .recipe = ranks.recipe};
      request.mesh = config.place.mesh;
      request.data.zero = ranks.data > 1 ? 3 : 0;
      const auto optimizer = make_optimizer("adamw", {});
      Engine engine(
          model, plan_together(agreement, model, request),
          {.device = device.get(), .store = store_of(own->rank()), .optimizer = optimizer.get(), .communicator = own.get()});
      engine.fill(first_weights(base, config, 3, adapters));
      save_adapters(engine, to, config, "base", rank == 0);
      engine.visit([&](const ParamSpec& param, std::uint64_t, TensorView range) {
        if (rank == 0 && !layers::is_adapter(param.name))
          frozen[param.name].insert(frozen[param.name].end(), range.data, range.data + range.bytes());
      });
    });
    return frozen;
  }
  [[nodiscard]] ChunkStore::Options store_of(int rank) const {
    return {.paths = {(folder_ / "disk").string()}, .name = "rank" + std::to_string(rank), .temporary = true};
  }
  static std::string text(const fs::path& directory, const char* name) { return read_text_file(directory / name); }

  ScratchFolder folder_;
};

TEST_F(FineTuning, SavedAdaptersBeginTheNextRunOnAnyRanks) {
  for (const auto& [family, experts] : {std::pair{"llama", 0}, {"gpt2", 0}, {"mixtral", 4}}) {
    const auto config = tiny(family, experts);
    const auto base = base_of(config);
    const auto first = folder_ / "first", next = folder_ / "next";
    const auto frozen = save(config, {}, base, {}, first);
    const auto json = nlohmann::json::parse(text(first, kAdapterConfigFile));
    EXPECT_EQ("base", json.at("base_model_name_or_path"));
    EXPECT_EQ(3, json.at("r"));
    std::vector<Ranks> all{{}, {.data = 2}, {.tensor = 2}};
    if (experts > 0) all.push_back({.expert = 2});
    for (const auto& ranks : all) {
      const auto same = save(config, ranks, base, first, next);
      if (ranks.tensor * ranks.expert == 1) {
        EXPECT_EQ(frozen, same) << family;
      }
      for (const auto* const file : {kAdapterWeightsFile, kAdapterConfigFile})
        EXPECT_EQ(text(first, file), text(next, file)) << family << ", " << ranks.tensor << " tensor ranks";
      fs::remove_all(next);
    }
    fs::remove_all(first);
    fs::remove_all(base);
  }
}

TEST_F(FineTuning, ASavedModelIsReadAgainAsItWas) {
  const auto config = without_adapters(tiny("llama", 0));
  const auto base = base_of(config), saved = folder_ / "saved";
  run_ranks(2, {}, [&](std::unique_ptr<Communicator> own) {
    ThreadPool pool(1);
    const auto device = make_cpu_device(pool);
    Agreement agreement(*own, *device);
    PlanRequest request{.shape = {{1, 8}, 1}, .budget = {kUnlimited, kUnlimited}};
    request.mesh.shard = 2;
    request.data.zero = 3;
    const auto model = make_model(config);
    const auto optimizer = make_optimizer("adamw", {});
    Engine engine(
        model, plan_together(agreement, model, request),
        {.device = device.get(), .store = store_of(own->rank()), .optimizer = optimizer.get(), .communicator = own.get()});
    engine.fill(first_weights(base, config, 3));
    save_model(engine, saved, config, {}, own->rank() == 0);
  });
  const auto read = read_model_dir(saved);
  EXPECT_EQ(config.hidden, read.hidden);
  EXPECT_EQ(parameter_count(config), parameter_count(read));
  const auto before = weights_from(base, config.family, make_model(config)),
             after = weights_from(saved, read.family, make_model(read));
  for (const auto& layer : make_model(read).layers)
    for (const auto& param : layer->params()) {
      if (param.tied) continue;
      std::vector<float> one(static_cast<std::size_t>(param.shape.elements())), other(one.size());
      before.read(param, 0, {reinterpret_cast<std::byte*>(one.data()), DType::fp32, param.shape});
      after.read(param, 0, {reinterpret_cast<std::byte*>(other.data()), DType::fp32, param.shape});
      EXPECT_EQ(one, other) << param.name;
    }
}

// The files have the masters: a bf16 run that begins with them loses nothing.
TEST_F(FineTuning, OfABf16ModelTheMastersAreSaved) {
  auto config = tiny("llama", 0);
  const auto base = base_of(config);
  config.dtype = DType::bf16;
  save(config, {.recipe = "bf16"}, base, {}, folder_ / "first");
  save(config, {.data = 2, .recipe = "bf16"}, base, folder_ / "first", folder_ / "next");
  EXPECT_EQ(text(folder_ / "first", kAdapterWeightsFile), text(folder_ / "next", kAdapterWeightsFile));
}

}  // namespace
}  // namespace terrace::lm
