// The configuration of a language model: its family and sizes, completed with the family's defaults and checked before anything
// is built.
//
// Owner:   a value.
// Threads: any.
// Errors:  Error(ErrorKind::refused) with the field, why its value is invalid, and the nearest valid value.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <terrace/core/math/dtype.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/parallel/layers/parts/block_pattern.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/mesh/model_rank.h>

namespace terrace::lm {

using layers::SkipShape;
SkipShape parse_skips(std::string_view text);  // "none", "u"

struct ModelConfig {
  std::reference_wrapper<const Family> family;
  std::int64_t layers = 0, hidden = 0, heads = 0;
  std::int64_t kv_heads = 0;   // 0: as many as heads
  std::int64_t head_size = 0;  // width of a head; 0: hidden ÷ heads
  std::int64_t ffn = 0;        // 0: the family's default
  std::int64_t seq_len = 0;    // the longest sequence; learned positions have one vector for each place in it
  // Of each block: how many positions a position attends to, including itself; 0: all positions up to itself. A window longer
  // than the sequences does not change the results; it is kept for files.
  layers::Windows window = {};
  std::int64_t vocab = 0;
  bool tied = true;                                                                      // the head uses the embedding's table
  std::uint32_t vocab_tiles = 1, mlp_tiles = 1, mlp_row_tiles = 1, attention_tiles = 1;  // as in Transformer
  std::int64_t head_rows = 0;                                                            // as in Transformer
  SkipShape skips = SkipShape::none;
  layers::Experts experts = {};
  layers::Adapters adapters = {};
  double rope_theta = 0;     // base of rotary positions; 0: the family's default, and always for other kinds of positions
  Rotary rope_scaling = {};  // of rotary positions (rope_scaling.h)
  double rope_fraction = 1;  // the part of a head that rotary positions rotate
  std::optional<layers::RotatedBlocks> rotated_blocks = {};  // nothing: the family's default
  double norm_eps = 0;                                       // 0: the family's default
  double query_scalar = 0;                                   // scores are divided by its root; 0: the width of a head
  double window_rope_theta = 0;                              // base in blocks with a window; 0: the family's default
  std::optional<double> attention_cap = {}, logit_cap = {};  // 0: none; nothing: the family's default
  std::optional<Activation> activation = {};                 // nothing: the family's default
  // Whether the four products of attention, and the products of the MLP, have biases; nothing: as in the family's tensors.
  std::optional<bool> attention_bias = {}, mlp_bias = {};
  DType dtype = DType::fp32;                            // of weights and activations
  layers::Products products = layers::Products::dtype;  // of blocks, as in Transformer
  ModelRank place = {};                                 // the sizes above are those of the whole model

  [[nodiscard]] std::int64_t head_dim() const { return head_size != 0 ? head_size : hidden / heads; }
};

// Every `every`-th block, counted from 1, does not rotate; 0: all blocks rotate.
layers::RotatedBlocks all_but_every(std::int64_t every, std::int64_t layers);
// Returns the config with all defaults filled in. Throws what validate() throws.
ModelConfig complete(ModelConfig config);
// `config`: a completed one. Returns the settings from which the library builds the layers.
layers::Transformer transformer_of(const ModelConfig& config);
void validate(const ModelConfig& config);

}  // namespace terrace::lm
