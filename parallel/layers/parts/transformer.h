// A transformer as data: its sizes, the kinds of its parts, the names of its parameters, and the part of it that this rank has.
// The layers of parallel/layers are built from it.
//
// Owner:   a value.
// Threads: any.
// Errors:  Error(ErrorKind::refused) from checked(), with the field, why its value is invalid, and the nearest valid value.
//          Every layer calls checked(), so no layer is built from invalid sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <terrace/core/math/dtype.h>
#include <terrace/core/math/math.h>
#include <terrace/core/math/rotary.h>
#include <terrace/core/math/routing.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/layers/parts/block_pattern.h>
#include <terrace/parallel/layers/parts/names.h>
#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/mesh/model_rank.h>

namespace terrace::layers {

// layer: removes the mean; has a weight and a bias. rms: has a weight.
enum class NormKind : std::uint8_t { layer, rms };
// RMS norms of q and k before they are rotated. heads: of each head by itself, with one weight for all of them. whole: of all
// heads together.
enum class QueryKeyNorms : std::uint8_t { none, heads, whole };
// learned: a vector for each position of a sequence is added to the embedding. rotary: the attention rotates pairs of elements
// of q and k by angles that grow with the position.
enum class Positions : std::uint8_t { none, learned, rotary };
// How files store the matrix of y = x · W: [outputs, inputs] as torch.nn.Linear, or [inputs, outputs] as GPT-2's Conv1D.
enum class MatrixOrder : std::uint8_t { out_in, in_out };
// u: blocks of the second half read the results of the first half, in reverse order, as in a U-Net.
enum class SkipShape : std::uint8_t { none, u };

// In what a block's products multiply: the dtype, or numbers of 8 bits, to which weights, activations (e4m3) and gradients
// (e5m2) are rounded before each product.
enum class Products : std::uint8_t { dtype, fp8 };

// Results of the MLP's first product, in units of its width: SwiGLU needs a gate beside each value.
constexpr std::size_t up_results(Activation activation) { return static_cast<std::size_t>(inputs_of(activation)); }

// Low-rank adapters (low_rank.h) of some products of each block. All other parameters are frozen.
struct Adapters {
  std::int64_t rank = 0;             // 0: no adapters
  double alpha = 16;                 // an adapter's result is multiplied by alpha ÷ rank
  std::vector<std::string> tensors;  // names of the adapted products in a block: "self_attn.q_proj"
  friend bool operator==(const Adapters&, const Adapters&) = default;
};

// A mixture of experts instead of each block's MLP. An expert has the MLP's width.
struct Experts {
  std::int64_t count = 0;   // 0: no mixture
  std::int64_t chosen = 2;  // experts per token
  std::int64_t shared = 0;  // further experts, which take all tokens
  // An expert takes at most ⌈capacity_factor · chosen · tokens / count⌉ rows of a micro-batch; 0: any number.
  double capacity_factor = 0;
  bool renormalise = true;  // gates of a token's chosen experts add up to 1
  // Coefficients of the router's losses: of its balance and of the mean square of its log-sum-exps (routing.h).
  double balance_loss = 0, square_loss = 0;

  [[nodiscard]] Routing routing(std::int64_t tokens) const;  // of a micro-batch's tokens
  friend bool operator==(const Experts&, const Experts&) = default;
};

struct Transformer {
  std::string name = "transformer";  // of the model, for messages and files
  std::int64_t layers = 0;           // blocks of attention and MLP
  std::int64_t hidden = 0, heads = 0;
  std::int64_t kv_heads = 0;   // as many as heads, or fewer, which then share keys and values
  std::int64_t head_size = 0;  // width of a head; 0: hidden ÷ heads
  std::int64_t ffn = 0;
  std::int64_t seq_len = 0;  // the longest sequence; learned positions have a vector for each place in it
  Windows window = {};       // per block: how many positions a position attends to, including itself; 0: all before it
  std::int64_t vocab = 0;
  bool tied = true;  // the head reads the embedding's table
  // Tiles of rows in which the table of the vocabulary is used. With several, a device budget must hold a tile, not the table;
  // the head computes its logits twice, and rounds differently.
  std::uint32_t vocab_tiles = 1;
  // Rows of a micro-batch whose logits the head computes at a time; 0: as many as are 64 MiB in fp32, up to 512. With more
  // rows, the table and its gradient are read and written less often, and scratch is larger. Another number rounds differently.
  std::int64_t head_rows = 0;
  // Tiles of the inner features of an MLP. With several, a device budget must hold one tile of its weights and of its inner
  // activations; the first product is computed twice, and the second one is rounded after each tile.
  std::uint32_t mlp_tiles = 1;
  // Tiles of rows in which a micro-batch goes through an MLP. With several, a device budget must hold the inner activations of
  // one tile; the first product is computed twice, and the gradients of weights are sums over tiles.
  std::uint32_t mlp_row_tiles = 1;
  // Tiles of the results of an attention's two products. With several, a device budget must hold a tile of one matrix; the
  // gradients of the products' inputs are rounded after each tile.
  std::uint32_t attention_tiles = 1;
  NormKind norm = NormKind::rms;
  double norm_eps = 1e-5;
  double norm_offset = 0;  // added to the weights of norms: 1 if the weights are gains less one (Gemma)
  QueryKeyNorms query_key_norms = QueryKeyNorms::none;
  ScoreRule scores = {};  // of attention
  Activation activation = Activation::swiglu;
  double embedding_factor = 1;  // multiplies the table's rows as the first block's input, not in a tied head
  double logit_cap = 0;         // logits become cap · tanh(logit / cap); 0: none
  Positions positions = Positions::rotary;
  double rope_theta = 10000;  // base of rotary positions
  Rotary rope_scaling = {};   // how rotary angles are scaled; its own base is ignored
  // The base for blocks with a window, whose angles are not scaled (Gemma 3); 0: blocks with and without windows rotate alike.
  double window_rope_theta = 0;
  double rope_fraction = 1;  // the part of a head's elements that are rotated, its first ones
  RotatedBlocks rotated_blocks = {};
  SkipShape skips = SkipShape::none;
  Experts experts = {};
  Adapters adapters = {};
  MatrixOrder matrices = MatrixOrder::out_in;
  TransformerNames names = {};
  double init_std = 0.02;               // standard deviation of the initial weights
  DType dtype = DType::fp32;            // of weights and activations
  Products products = Products::dtype;  // of attention's and the MLP's matrices; not of the router, the head and adapters
  // The ranks that the model is split over, and this one among them. The sizes above are those of the whole model; a batch's
  // shape is that of this rank's slice of the positions.
  ModelRank place = {};

  [[nodiscard]] TensorParallel tensor() const { return place.tensor(); }
  [[nodiscard]] ContextParallel context() const { return place.context(); }
  [[nodiscard]] ExpertParallel expert() const { return place.expert(); }
  [[nodiscard]] std::int64_t heads_here() const { return heads / tensor().ways(); }
  [[nodiscard]] std::uint32_t kv_ways() const;  // parts into which the key-value heads are split
  [[nodiscard]] std::int64_t kv_heads_here() const { return kv_heads / kv_ways(); }
  [[nodiscard]] std::int64_t attended() const { return heads * head_dim(); }
  [[nodiscard]] std::int64_t attended_here() const { return heads_here() * head_dim(); }
  // This rank's part of the vocabulary; the parts of ranks need not be equal.
  [[nodiscard]] comm::Block vocab_here() const;
  [[nodiscard]] std::int64_t head_dim() const { return head_size != 0 ? head_size : hidden / heads; }
  // How many elements of a head are rotated, in pairs; 0: the block does not rotate.
  [[nodiscard]] std::int64_t rotated(std::int64_t block) const;
  [[nodiscard]] Rotary rotary(std::int64_t block) const;
  // The block whose result is added to the input of this one; −1: none. A block never skips from the block just before it.
  [[nodiscard]] std::int64_t skips_from(std::int64_t block) const {
    const auto from = layers - 1 - block;
    return skips == SkipShape::u && from + 1 < block ? from : -1;
  }
  // Standard deviation for projections whose result is added to the residual stream, two per block (Radford et al. 2019,
  // section 2.3).
  [[nodiscard]] double residual_init_std() const;
};

inline constexpr std::int64_t kMostLayers = 1 << 16, kMostHeadRows = 1 << 20;
inline constexpr std::int64_t kLargestWidth = 1 << 20;  // products of three such sizes still fit an int64

std::int64_t most_vocab_tiles(std::int64_t vocab, std::int64_t tensor_ranks);

// The features of the model, without those of its place.
Features features_of(const Transformer& transformer);
// What degrees of parallelism must divide.
ModelShape shape_of(const Transformer& transformer);
// Returns the transformer itself if it is valid.
const Transformer& checked(const Transformer& transformer);

}  // namespace terrace::layers
