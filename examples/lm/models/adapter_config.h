// Checks that the adapter_config.json of a PEFT directory describes adapters that terrace can train.
//
// Threads: any.
// Errors:  Error that names the file: ErrorKind::refused if the file is missing, needs a computation that terrace does not
//          have, or has numbers that differ from the run's; ErrorKind::corrupt if it is not a JSON object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>

namespace terrace::lm {

// The settings of a directory's adapters. `alpha` is to be divided by the rank, even if the file has use_rslora, which divides
// by the square root.
struct AdapterNumbers {
  std::int64_t rank = 0;
  double alpha = 0;
  std::set<std::string> of_experts;  // as below
};
AdapterNumbers adapter_numbers(const std::filesystem::path& file);
// `of_experts`: the adapted products of all experts of a block, "mlp.experts.down_proj".
void demand_adapter_config(const std::filesystem::path& file, std::int64_t rank, double alpha,
                           const std::set<std::string>& of_experts);
// `modules`: the modules with adapters in the weights file, such as "model.layers.0.self_attn.q_proj". PEFT drops adapters that
// the configuration does not name.
void demand_adapted_modules(const std::filesystem::path& file, std::span<const std::string> modules);

}  // namespace terrace::lm
