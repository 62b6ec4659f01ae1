// adapter_config.json of a directory of PEFT: whether it describes adapters as terrace trains them.
//
// Threads: any.
// Errors:  Error that names the file: Exit::usage for one that is missing, that computes in a way that terrace does not have,
// or
//          whose numbers are not those of the run; Exit::corrupt for one that is no JSON object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>

namespace terrace::lm {

// What a directory says of its adapters. `alpha` is divided by the rank, also where the file has use_rslora, which divides it
// by the root.
struct AdapterNumbers {
  std::int64_t rank = 0;
  double alpha = 0;
  std::set<std::string> of_experts;  // as below
};
AdapterNumbers adapter_numbers(const std::filesystem::path& file);
// `of_experts`: the adapted products of all experts of a block, "mlp.experts.down_proj".
void demand_adapter_config(const std::filesystem::path& file, std::int64_t rank, double alpha,
                           const std::set<std::string>& of_experts);
// `modules`: those that the file of weights has adapters of, "model.layers.0.self_attn.q_proj". PEFT drops what the
// configuration does not name.
void demand_adapted_modules(const std::filesystem::path& file, std::span<const std::string> modules);

}  // namespace terrace::lm
