// How PEFT keeps the adapters of a block's experts: one pair of matrices for a product of all experts, where terrace has a pair
// for each expert.
//
//   lora_A [experts · rank, inputs]    of expert e the rows from e · rank on
//   lora_B [outputs, rank · experts]   of expert e the columns e, experts + e, 2 · experts + e, …
//
// Owner:   values. Threads: any.
// Errors:  those of the functions that are given.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/math/tensor.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::lm {

// A tensor in the file of an adapter.
struct AdapterTensor {
  ParamSpec whole;                  // its name, without PEFT's prefix, and its shape
  std::vector<ParamSpec> parts;     // the parameters that it consists of: one, or one of each expert
  enum class Of { rows, columns };  // of several parts: where they lie
  Of of = Of::rows;
};

// Those of a model, in their order. `library_prefix`: what Hugging Face's library has between a block's prefix and the names of
// all experts' products, "mlp.experts.".
std::vector<AdapterTensor> adapter_tensors(const Model& model, const layers::Adapters& adapters, std::string_view experts,
                                           std::string_view library_prefix);

// Elements [first, first + n) of a tensor from its parts, and of one part from the tensor; n is the number of `range`.
using ReadElements = std::function<void(std::uint64_t first, TensorView range)>;
void read_whole(const AdapterTensor& tensor, std::uint64_t first, TensorView range, const ReadRange& read_part);
void read_part(const AdapterTensor& tensor, std::size_t part, std::uint64_t first, TensorView range,
               const ReadElements& read_tensor);

}  // namespace terrace::lm
