// The places of a model's parameters in chunks: the same layout on every rank, whichever chunks a rank holds.
//
// Each tile of a parameter is a tensor of this Layout. Parameters of one unit with equally many tiles lie tile by tile, so that
// a phase's tiles are adjacent. A tied parameter has no place of its own: it is stored with the layer that declares it (its
// home). A layer's chunks form groups of one chunk for each rank that shares the state (data_parallel.h). A layer's frozen
// parameters lie behind the others, in runs of their own, so that only a layer's first chunks have gradients and states.
//
// Owner:   a StepMap. Pure. Threads: const after construction.
// Errors:  std::logic_error for a tied parameter without an earlier declaration, or for a second tied parameter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/layout.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/model/param_group.h>

namespace terrace::mapping {

class ParameterLayout : public memory::Layout {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  // If `chunk_elements` is 0, the best size is searched. `group`: chunks in a group.
  ParameterLayout(const Model& model, std::span<const ParamGroup> param_groups, std::uint64_t chunk_elements,
                  std::uint32_t group, std::span<const std::string> freeze = {});

  [[nodiscard]] const std::vector<ParamSpec>& params(std::uint32_t layer) const { return params_[layer]; }
  struct Home {
    std::uint32_t layer = 0, tensor = 0;  // the declaring layer and the tensor's position in its layout
    std::uint32_t stride = 1;             // tensors from one tile to the next
  };
  // The home of a parameter, or of one of its tiles.
  [[nodiscard]] Home home(std::uint32_t layer, std::uint32_t param, std::uint32_t tile = 0) const {
    auto home = homes_[layer][param];
    home.tensor += tile * home.stride;
    return home;
  }
  [[nodiscard]] const memory::TensorPlace& place_of(Home home) const { return place(home.layer, home.tensor); }
  // The parameter to which a tensor of the layer belongs.
  [[nodiscard]] const ParamSpec& param_at(std::uint32_t layer, std::uint32_t tensor) const {
    return params_[layer][param_at_[layer][tensor]];
  }
  // True if another layer also reads it.
  [[nodiscard]] bool is_tied(std::uint32_t layer, std::uint32_t tensor) const;
  [[nodiscard]] std::uint32_t groups_of(std::uint32_t layer) const { return chunks_of(layer) / group_; }
  // The number of the layer's chunks, groups and runs that updates change; they are its first ones.
  [[nodiscard]] std::uint32_t trained_chunks(std::uint32_t layer) const { return trained_chunks_[layer]; }
  [[nodiscard]] std::uint32_t trained_groups(std::uint32_t layer) const { return trained_chunks_[layer] / group_; }
  [[nodiscard]] std::uint32_t trained_runs(std::uint32_t layer) const;
  [[nodiscard]] bool has_frozen() const;
  // True if the layer's backward has a gradient of weights to compute.
  [[nodiscard]] bool trains(std::uint32_t layer) const {
    return trained_chunks_[layer] != 0 || (layer == tied_layer_ && tied_chunks_ != 0);
  }
  // The first layer that trains: the layers before it need no backward. layers() if none does.
  [[nodiscard]] std::uint32_t first_trained() const { return first_trained_; }

  // The layer that reads another's weight, and the layer that declares it; kNone if no parameter is tied.
  [[nodiscard]] bool has_tied() const { return tied_layer_ != kNone; }
  [[nodiscard]] std::uint32_t tied_layer() const { return tied_layer_; }
  [[nodiscard]] std::uint32_t tied_home() const { return tied_home_; }
  // The tied layer's gradient of the tied weight has the same layout as the declaring layer's chunks, up to the last group that
  // contains the weight. adds_tied(): whether it includes this chunk.
  [[nodiscard]] std::uint32_t tied_chunks() const { return tied_chunks_; }
  [[nodiscard]] std::uint32_t tied_groups() const { return tied_chunks_ / group_; }
  [[nodiscard]] bool adds_tied(std::uint32_t layer, std::uint32_t chunk_in_layer) const {
    return layer == tied_home_ && chunk_in_layer < tied_chunks_;
  }

 private:
  using Params = std::vector<std::vector<ParamSpec>>;
  ParameterLayout(Params params, std::uint64_t chunk_elements, std::uint32_t group);
  void find_homes();
  void find_trained();

  Params params_;
  std::vector<std::vector<Home>> homes_;
  std::vector<std::vector<std::uint32_t>> param_at_;  // [layer][tensor]
  std::uint32_t group_;
  std::uint32_t tied_layer_ = kNone, tied_home_ = kNone;
  std::uint32_t tied_chunks_ = 0;
  std::vector<std::uint32_t> trained_chunks_;  // [layer]
  std::uint32_t first_trained_ = 0;
};

}  // namespace terrace::mapping
