// LoRA adapters of a language model (parallel/layers/parts/low_rank.h): which products have them, and their files, as Hugging
// Face's PEFT reads and writes them: a directory with adapter_config.json and adapter_model.safetensors.
//
// Owner:   values; a WeightSource keeps its file open.
// Threads: any.
// Errors:  Error(Exit::usage) for a target that the family does not have, and for an adapter that the run's settings do not
//          describe, or that computes in a way that terrace does not have; Error(Exit::corrupt) for damaged files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/tensor.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/run/compute.h>

namespace terrace::lm {

inline constexpr const char *kAdapterConfigFile = "adapter_config.json", *kAdapterWeightsFile = "adapter_model.safetensors";

// `targets`: words out of q, k, v, o, gate, up and down, separated by commas, or all. Results that lie in one tensor of the
// family (Phi-3's qkv_proj, GPT-2's c_attn) have one adapter, so they are targets together; so have all that an expert computes
// of its input. `experts`: gate, up and down are those of each expert.
layers::Adapters adapters_of(const Family& family, bool experts, std::int64_t rank, double alpha, std::string_view targets);

// How a directory of PEFT describes its adapters, for adapters_of(): the words are those of the tensors that it has.
struct AdapterSettings {
  std::int64_t rank = 0;
  double alpha = 0;
  std::string targets;
};
AdapterSettings adapter_settings(const std::filesystem::path& directory, const Family& family, bool experts);

// The adapters' first weights from a directory of PEFT. `model`: the one that is trained, with the adapters.
WeightSource adapters_from(const std::filesystem::path& directory, const layers::Adapters& adapters, const Family& family,
                           const Model& model);

// Writes the directory's files. `base`: the name of the model that the adapters belong to.
void write_adapters(const std::filesystem::path& directory, const layers::Adapters& adapters, const Family& family,
                    const Model& model, const std::string& base, DType dtype, const ReadRange& read);

// The weights of the model without adapters that computes the same: W + s · B · A. `read` gives those of `model`, which has
// the adapters; it is asked for the two matrices of one adapter at a time, and then for their matrix. Products are computed on
// the pool; their bits depend on the weights only.
class MergedWeights {
 public:
  MergedWeights(const layers::Adapters& adapters, const Family& family, const Model& model, DType dtype, ReadRange read,
                ThreadPool& pool);
  void operator()(const ParamSpec& param, std::uint64_t first, TensorView range);
  // The parameters of the model with adapters that one of the merged model is made of, in the order in which they are read.
  [[nodiscard]] std::vector<ParamSpec> parts_of(const ParamSpec& param) const;

 private:
  struct Place {
    std::string tensor;  // whose adapter changes a weight, and the first of its outputs that the weight makes
    std::int64_t first_output;
  };
  [[nodiscard]] Place place_of(const ParamSpec& param) const;
  [[nodiscard]] const ParamSpec* adapter_of(const ParamSpec& param, std::string_view which) const;  // null: it has none
  [[nodiscard]] std::vector<double> numbers_of(const ParamSpec& param) const;

  layers::Adapters adapters_;
  const Family& family_;
  DType dtype_;
  ReadRange read_;
  ThreadPool& pool_;
  std::map<std::string, ParamSpec> params_;
  std::string loaded_;                // the parameter whose adapter is in left_ and right_
  std::vector<double> left_, right_;  // [rows, rank], [rank, columns], of the matrix as it is stored
  std::int64_t columns_ = 0;
};

}  // namespace terrace::lm
