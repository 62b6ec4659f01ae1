// The part of a layer's parameters that each rank holds, among the ranks that differ on the mesh's kPartAxes: a tensor rank
// holds blocks of them, an expert rank some of the experts, and all ranks hold the rest.
//
// Threads: values; pure.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/parallel/mesh/expert_parallel.h>
#include <terrace/parallel/mesh/tensor_parallel.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::model {

struct ModelParts {
  TensorParallel tensor = {};
  ExpertParallel expert = {};

  [[nodiscard]] std::uint32_t ranks() const { return expert.ranks * tensor.ranks; }
  [[nodiscard]] std::uint32_t rank() const { return expert.rank * tensor.ranks + tensor.rank; }
  [[nodiscard]] ModelParts of(std::uint32_t other_rank) const {
    auto other = *this;
    other.expert.rank = other_rank / tensor.ranks;
    other.tensor.rank = other_rank % tensor.ranks;
    return other;
  }
};

// How many ranks hold the same part of the parameter. Only the first of them counts the part in a norm and saves it
// (acts_for()).
inline std::uint32_t holders(const ParamSpec& param, const ModelParts& parts) {
  return holders(param.split, parts.tensor) * (param.dealt.empty() ? parts.expert.ranks : 1);
}
inline bool acts_for(const ParamSpec& param, const ModelParts& parts) {
  return acts_for(param.split, parts.tensor) && (!param.dealt.empty() || parts.expert.rank == 0);
}
inline bool hold_the_same(const ParamSpec& param, const ModelParts& one, const ModelParts& other) {
  return part_number(param.split, one.tensor) == part_number(param.split, other.tensor) &&
         (param.dealt.empty() || one.expert.rank == other.expert.rank);
}
// The name of the rank's parameter in this place.
inline const std::string& name_on(const ParamSpec& param, const ModelParts& parts) {
  return param.dealt.empty() ? param.name : param.dealt.at(parts.expert.rank);
}
inline ParamSpec param_on(ParamSpec param, const ModelParts& parts) {
  param.name = name_on(param, parts);
  return param;
}

}  // namespace terrace::model
