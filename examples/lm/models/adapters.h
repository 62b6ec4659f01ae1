// LoRA adapters of a language model (parallel/layers/parts/low_rank.h): which products have them, and their files, as Hugging
// Face's PEFT reads and writes them: a directory with adapter_config.json and adapter_model.safetensors.
//
// Owner:   values; a WeightSource keeps its file open.
// Threads: any.
// Errors:  Error(ErrorKind::refused) for a target that the family does not have, and for an adapter that differs from the run's
//          settings or needs a computation that terrace does not have; Error(ErrorKind::corrupt) for damaged files.
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
#include <terrace/offload/io/io_choice.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/run/compute.h>

namespace terrace::lm {

inline constexpr const char *kAdapterConfigFile = "adapter_config.json", *kAdapterWeightsFile = "adapter_model.safetensors";

// `targets`: names out of q, k, v, o, gate, up and down, separated by commas, or all. Results that share one tensor in the
// family (Phi-3's qkv_proj, GPT-2's c_attn) also share one adapter, so naming one selects all of them; gate and up of an expert
// likewise. `experts`: gate, up and down mean those of each expert.
layers::Adapters adapters_of(const Family& family, bool experts, std::int64_t rank, double alpha, std::string_view targets);

// The settings of the adapters in a PEFT directory, for adapters_of(): its `targets` are the names of the tensors that it has.
struct AdapterSettings {
  std::int64_t rank = 0;
  double alpha = 0;
  std::string targets;
};
AdapterSettings adapter_settings(const std::filesystem::path& directory, const Family& family, bool experts);

// Reads the initial adapter weights from a PEFT directory. `model`: the model to train, with adapters.
WeightSource adapters_from(const std::filesystem::path& directory, const layers::Adapters& adapters, const Family& family,
                           const Model& model, const IoChoice& io = {});

// Writes a PEFT directory. `base`: the name of the model that the adapters belong to.
void write_adapters(const std::filesystem::path& directory, const layers::Adapters& adapters, const Family& family,
                    const Model& model, const std::string& base, DType dtype, const ReadRange& read, const IoChoice& io = {});

// The weights of the equivalent model without adapters: W + s · B · A. `read` gives the parameters of `model`, which has the
// adapters; it is called for the two matrices of one adapter, then for the matrix that they change. Products are computed on
// the pool; the result's bits depend only on the weights.
class MergedWeights {
 public:
  MergedWeights(const layers::Adapters& adapters, const Family& family, const Model& model, DType dtype, ReadRange read,
                ThreadPool& pool);
  void operator()(const ParamSpec& param, std::uint64_t first, TensorView range);
  // The parameters of `model` that one merged parameter is computed from, in the order in which they are read.
  [[nodiscard]] std::vector<ParamSpec> parts_of(const ParamSpec& param) const;

 private:
  struct Place {
    std::string tensor;  // the tensor whose adapter changes a weight, and the first adapter output that belongs to this weight
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
  std::vector<double> left_, right_;  // [rows, rank], [rank, columns], in the stored orientation of the matrix
  std::int64_t columns_ = 0;
};

}  // namespace terrace::lm
