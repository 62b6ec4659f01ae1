// All settings of a run and their defaults, in parts by what reads them, and what the program has found out for them. Flags,
// TOML keys and the saved configuration come from the table over these settings in options.h.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/models/model_config.h>
#include <terrace/examples/terrace/config/data_config.h>
#include <terrace/examples/terrace/config/memory_config.h>
#include <terrace/examples/terrace/config/parallel_config.h>
#include <terrace/examples/terrace/config/plan_config.h>
#include <terrace/examples/terrace/config/run_options.h>
#include <terrace/examples/terrace/config/train_config.h>

namespace terrace::cli {

// No settings: results of looking at the command line, the machine, the data and the other ranks.
struct Found {
  std::set<std::string, std::less<>> given;  // keys of the options that were given
  std::vector<std::string> chosen;           // what the program chose, and why: "--dtype bf16 (config.json)"
  bool chooses_batch = false;                // a published model, and no size of a batch is given (choose_batch.h)
  std::string device = "cpu";                // what --device auto means on this machine (usual_settings.h)
  std::int64_t local_ranks = 0;              // how many ranks share this machine; 0: all
  std::int64_t local_rank = 0;               // this rank's index among them, added to the number of the GPU
  std::int64_t rank = 0;                     // in the mesh, set in each rank
  // The file with the token ids of each text file, and the format of the ids (token_cache.h).
  std::map<std::string, std::filesystem::path> token_files;
  DataFormat token_format = DataFormat::u32;
};

struct RunConfig {
  // As given: model_config() adds what the other parts decide, and completes it.
  lm::ModelConfig model = {
      .family = lm::family_named("llama"), .layers = 6, .hidden = 256, .heads = 8, .seq_len = 256, .vocab = 256};
  DataConfig data;
  TrainConfig train;
  PlanConfig plan;
  ParallelConfig parallel;
  MemoryConfig memory;
  RunOptions run;
  Found found;

  [[nodiscard]] bool is_given(std::string_view key) const { return found.given.contains(key); }
  [[nodiscard]] const std::string& device_name() const { return memory.device == "auto" ? found.device : memory.device; }
  [[nodiscard]] bool on_gpu() const { return device_name() != "cpu"; }
};

}  // namespace terrace::cli
