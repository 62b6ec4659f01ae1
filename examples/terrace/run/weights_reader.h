// An engine that trains nothing, for generation and for evaluation. It reads the committed weights of a run, each layer through
// the tiers from where the run stores it, or the weights of a model's directory.
//
// Owner:   the command. Threads: one.
// Errors:  Error(ErrorKind::refused) for a directory that is neither, Error(ErrorKind::corrupt) for a damaged one,
//          Error(ErrorKind::does_not_fit) for budgets that are too small; those of Engine.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::cli {

// Whether a directory has a run, and not a model.
bool is_run(const std::filesystem::path& directory);
// The settings for reading a directory of Hugging Face's library without a run: in its own dtype, for sequences as long as it
// allows. `adapter`: a directory of PEFT's; empty: none.
RunConfig settings_of_model(const std::filesystem::path& directory, const std::filesystem::path& adapter = {});

// What an engine is for: generation, or evaluations.
struct ReadFor {
  StepShape shape = {.batch = {1, 1}, .micro_batches = 1};
  std::int64_t decode_positions = 0;  // 0: for evaluations
};

class WeightsReader {
 public:
  // `config`: that of the run or the model, with the budgets of this call.
  WeightsReader(const RunConfig& config, const std::string& directory, const ReadFor& use);
  ~WeightsReader();
  WeightsReader(WeightsReader&&) noexcept;
  WeightsReader& operator=(WeightsReader&&) noexcept;

  [[nodiscard]] const RunConfig& config() const;  // of one rank
  [[nodiscard]] const Model& model() const;
  [[nodiscard]] Engine& engine();
  [[nodiscard]] Device& device();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace terrace::cli
