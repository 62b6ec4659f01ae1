#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/parallel/layers/parts/transformer.h>

namespace terrace::layers {
namespace {

template <class... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> what, Values&&... values) {
  throw Error("model: " + fmt::format(what, std::forward<Values>(values)...), ErrorKind::refused);
}

void demand(const char* field, double value, bool valid, const char* rule) {
  if (!valid || !std::isfinite(value)) refuse("{} must be {}, not {}", field, rule, value);
}

// The elements of a head that are rotated, rounded as in Hugging Face's library.
std::int64_t rotated_elements(const Transformer& config) {
  return static_cast<std::int64_t>(static_cast<double>(config.head_dim()) * config.rope_fraction);
}

void require_size(const char* field, std::int64_t value, std::int64_t largest) {
  if (value < 1) refuse("{} must be at least 1, not {}", field, value);
  if (value > largest) refuse("{} must be at most {}, not {}", field, largest, value);
}

// The divisor of `whole` nearest to `value`; of two, the smaller.
std::int64_t nearest_divisor(std::int64_t whole, std::int64_t value) {
  for (std::int64_t distance = 0; distance < whole; ++distance) {
    for (const std::int64_t d : {value - distance, value + distance})
      if (d >= 1 && whole % d == 0) return d;
  }
  return whole;
}
// Text for the multiples of `unit` around a value.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit, above = below + unit;
  return below == 0 ? fmt::format("{}", above) : fmt::format("{} or {}", below, above);
}

// A projection has one tensor, or one for each result; several tensors are one product only if results are rows.
void check_tensors(const Transformer& config) {
  const auto demand = [&](const char* name, const ProjectionParts& projection, std::size_t results) {
    const std::size_t tensors = projection.tensors.size();
    if (tensors != 1 && tensors != results)
      refuse("{} has {} tensors: it needs one{}", name, tensors,
             results == 1 ? "" : fmt::format(", or one for each of its {} results", results));
    if (tensors != 1 && config.matrices == MatrixOrder::in_out)
      refuse("{} has {} tensors, and matrices [inputs, outputs] of several tensors cannot be one product: it needs one", name,
             tensors);
  };
  demand("names.qkv", config.names.qkv, 3);
  demand("names.attention_output", config.names.attention_output, 1);
  demand("names.up", config.names.up, up_results(config.activation));
  demand("names.down", config.names.down, 1);
  if (config.experts.count == 0) return;
  demand("names.expert_up", config.names.expert_up, up_results(config.activation));
  demand("names.expert_down", config.names.expert_down, 1);
}

void check_experts(const Experts& e) {
  if (e.count < 0) refuse("experts must be at least 0, not {}", e.count);
  if (e.count == 0) return;
  require_size("experts", e.count, 1 << 16);
  require_size("experts_per_token", e.chosen, e.count);
  if (e.shared < 0 || e.shared > 1 << 10) refuse("shared_experts must be 0 to {}, not {}", 1 << 10, e.shared);
  demand("expert_capacity", e.capacity_factor, e.capacity_factor >= 0, "at least 0");
  demand("router_aux_loss", e.balance_loss, e.balance_loss >= 0, "at least 0");
  demand("router_z_loss", e.square_loss, e.square_loss >= 0, "at least 0");
}

// Both norms of q and k have names, and both norms of results.
void check_norms(const Transformer& config) {
  const auto& names = config.names;
  if ((config.query_key_norms != QueryKeyNorms::none) != !names.q_norm.empty() || names.q_norm.empty() != names.k_norm.empty())
    refuse("norms of q and k need a name each");
  if (names.attention_result_norm.empty() != names.mlp_result_norm.empty())
    refuse("both halves of a block have a norm of their result, or neither");
}

// The sizes of an adapter.
void check_adapters(const Transformer& config) {
  const auto& [rank, alpha, tensors] = config.adapters;
  if (rank == 0) return;
  require_size("lora_rank", rank, std::min(config.hidden, config.ffn));
  demand("lora_alpha", alpha, alpha > 0, "more than 0");
  if (tensors.empty()) refuse("adapters need a tensor that they adapt");
}

void check_rotation(const Transformer& config) {
  const bool rotary = config.positions == Positions::rotary;
  if (!rotary && (config.rope_fraction != 1 || !config.rotated_blocks.is_usual()))
    refuse("only rotary positions rotate a part of a head, or some blocks");
  demand("rope_fraction", config.rope_fraction, config.rope_fraction > 0 && config.rope_fraction <= 1,
         "more than 0 and at most 1");
  if (const auto blocks = std::ssize(config.rotated_blocks.pattern()); blocks > config.layers)
    refuse("the list of rotated blocks has {} numbers for {} layers: it needs at most one for each", blocks, config.layers);
  if (const auto& scaling = config.rope_scaling; rotary && scaling.scaling == RotaryScaling::longrope)
    for (const auto pairs : {std::ssize(scaling.near), std::ssize(scaling.far)})
      if (pairs != rotated_elements(config) / 2)
        refuse("longrope has {} factors for the {} pairs of a head's {} rotated elements", pairs, rotated_elements(config) / 2,
               rotated_elements(config));
  if (!rotary || config.rope_fraction == 1) return;
  if (const auto rotated = rotated_elements(config); rotated < 2 || rotated % 2 != 0)
    refuse("rotary positions need an even number of elements, not {} of heads of {}", rotated, config.head_dim());
}

void check_scales(const Transformer& config) {
  demand("norm_eps", config.norm_eps, config.norm_eps > 0, "positive");
  demand("init_std", config.init_std, config.init_std >= 0, "at least 0");
  if (config.positions == Positions::rotary) demand("rope_theta", config.rope_theta, config.rope_theta > 0, "positive");
  demand("norm_offset", config.norm_offset, config.norm_offset == 0 || config.norm_offset == 1, "0 or 1");
  demand("attention_scale", config.scores.scale, config.scores.scale >= 0, "at least 0");
  demand("attention_cap", config.scores.cap, config.scores.cap >= 0, "at least 0");
  demand("logit_cap", config.logit_cap, config.logit_cap >= 0, "at least 0");
  demand("embedding_factor", config.embedding_factor, config.embedding_factor > 0, "more than 0");
  demand("window_rope_theta", config.window_rope_theta, config.window_rope_theta >= 0, "at least 0");
  if (config.embedding_factor != 1 && config.positions == Positions::learned)
    refuse("an embedding_factor would multiply learned positions, too: it must be 1");
  if (config.window_rope_theta != 0 && config.positions != Positions::rotary)
    refuse("only rotary positions have a base for blocks with a window");
}

void check_attention_tiles(const Transformer& config) {
  const std::int64_t q = config.attended_here(), kv = config.kv_heads_here() * config.head_dim(),
                     tiles = config.attention_tiles;
  const auto common = std::gcd(std::gcd(q, kv), config.hidden);
  if (tiles < 1 || common % tiles != 0)
    refuse(
        "{} attention_tiles do not divide the {} results of q, {} of k and {} of the output of a rank: the nearest "
        "is {}",
        tiles, q, kv, config.hidden, nearest_divisor(common, tiles));
}

// What the table and tensors with several results need of tensor ranks; demand_place() checks the rest.
void check_tensor_ranks(const Transformer& config) {
  const auto ranks = config.tensor().ranks;
  if (config.tensor().ways() > config.kv_heads && config.names.qkv.tensors.size() == 1)
    refuse(
        "{} keeps q, k and v in one tensor, of which ranks that share key-value heads would have different "
        "parts: the most are {} tensor ranks",
        config.name, config.kv_heads);
  if (config.vocab < ranks) refuse("{} tensor ranks are more than the vocabulary of {}", ranks, config.vocab);
}

void check_tiles(const Transformer& config) {
  const std::int64_t ranks = config.tensor().ranks;
  if (const auto most = most_vocab_tiles(config.vocab, ranks); config.vocab_tiles < 1 || config.vocab_tiles > most)
    refuse("vocab_tiles must be 1 to {} for {} rows of the table, not {}", most, config.vocab / ranks, config.vocab_tiles);
  if (config.head_rows < 0 || config.head_rows > kMostHeadRows)
    refuse("head_rows must be 0 to {}, not {}", kMostHeadRows, config.head_rows);
  if (config.mlp_tiles < 1 || config.ffn / ranks % config.mlp_tiles != 0)
    refuse("{} mlp_tiles do not divide the {} inner features of a rank's MLP: the nearest is {}", config.mlp_tiles,
           config.ffn / ranks, nearest_divisor(config.ffn / ranks, config.mlp_tiles));
  check_attention_tiles(config);
  if (config.mlp_row_tiles < 1) refuse("mlp_row_tiles must be at least 1");
}

// A GPU multiplies rows of whole 16 codes and writes columns of whole 16 numbers; numbers of rows are free.
void check_float8(const Transformer& config) {
  if (config.dtype != DType::bf16)
    refuse("products fp8 has results in bf16, but the dtype is {}: give dtype bf16, or leave out products",
           name_of(config.dtype));
  const std::int64_t tiles = config.attention_tiles, kv = config.kv_heads_here() * config.head_dim();
  const std::pair<const char*, std::int64_t> widths[] = {
      {"hidden", config.hidden},
      {"a tile of a rank's q, k and v", (config.attended_here() + 2 * kv) / tiles},
      {"a rank's attention", config.attended_here()},
      {"a tile of attention's output", config.hidden / tiles},
      {"a tile of a rank's MLP", config.ffn / config.tensor().ranks / config.mlp_tiles}};
  for (const auto& [what, width] : widths)
    if (width % 16 != 0)
      refuse("products fp8 needs widths that are multiples of 16, but {} has {}: leave out products, or give other sizes", what,
             width);
}

void check_sizes(const Transformer& config) {
  const bool rotary = config.positions == Positions::rotary;
  require_size("layers", config.layers, kMostLayers);
  require_size("hidden", config.hidden, kLargestWidth);
  require_size("heads", config.heads, kLargestWidth);
  require_size("kv_heads", config.kv_heads, kLargestWidth);
  require_size("ffn", config.ffn, std::int64_t{1} << 24);
  require_size("seq_len", config.seq_len, std::int64_t{1} << 24);
  for (const auto window : config.window.pattern())
    if (window < 0 || window > config.seq_len) refuse("window must be 0 (none) to seq_len {}, not {}", config.seq_len, window);
  if (const auto blocks = std::ssize(config.window.pattern()); blocks > config.layers)
    refuse("window has {} numbers for {} layers: it needs at most one for each", blocks, config.layers);
  require_size("vocab", config.vocab, std::numeric_limits<std::int32_t>::max());
  if (config.head_size != 0) require_size("head_dim", config.head_size, kLargestWidth / config.heads);
  if (config.head_size == 0 && config.hidden % config.heads != 0)
    refuse("heads ({}) do not divide hidden ({}): the nearest are heads {}, or hidden {}", config.heads, config.hidden,
           nearest_divisor(config.hidden, config.heads), nearest_multiples(config.hidden, config.heads));
  if (config.heads % config.kv_heads != 0)
    refuse("kv_heads ({}) do not divide heads ({}): the nearest is kv_heads {}", config.kv_heads, config.heads,
           nearest_divisor(config.heads, config.kv_heads));
  if (rotary && config.head_size != 0 && config.head_size % 2 != 0)
    refuse("rotary positions need heads of even width, not {}: the nearest are head_dim {}", config.head_size,
           nearest_multiples(config.head_size, 2));
  if (rotary && config.head_dim() % 2 != 0)
    refuse("rotary positions need heads of even width, not hidden {} / heads {} = {}: the nearest is hidden {}", config.hidden,
           config.heads, config.head_dim(), nearest_multiples(config.hidden, 2 * config.heads));
}

}  // namespace

std::int64_t most_vocab_tiles(std::int64_t vocab, std::int64_t tensor_ranks) {
  constexpr std::int64_t kLeastRows = 16;  // of a tile
  return std::max<std::int64_t>(1, vocab / tensor_ranks / kLeastRows);
}

std::int64_t Transformer::rotated(std::int64_t block) const {
  return positions == Positions::rotary && rotated_blocks.of(block) ? rotated_elements(*this) : 0;
}

Rotary Transformer::rotary(std::int64_t block) const {
  if (window_rope_theta != 0 && window.of(block) != 0) return window_rope_theta;
  auto angles = rope_scaling;
  angles.base = rope_theta;
  angles.positions = static_cast<double>(seq_len);
  return angles;
}

double Transformer::residual_init_std() const { return init_std / std::sqrt(2.0 * static_cast<double>(layers)); }

Routing Experts::routing(std::int64_t tokens) const {
  const double usual = static_cast<double>(chosen * tokens) / static_cast<double>(count);
  // A capacity of no rows would drop every token.
  const auto capacity =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(std::min(capacity_factor * usual, 0x1p62))));
  return {.experts = count,
          .chosen = chosen,
          .shared = shared,
          .capacity = capacity_factor == 0 ? 0 : capacity,
          .renormalise = renormalise};
}

std::uint32_t Transformer::kv_ways() const {
  return static_cast<std::uint32_t>(std::min(kv_heads, std::int64_t{tensor().ways()}));
}

comm::Block Transformer::vocab_here() const {
  return comm::block_of(vocab, static_cast<int>(tensor().rank), static_cast<int>(tensor().ranks));
}

Features features_of(const Transformer& config) {
  Features all;
  all.add_if(config.dtype == DType::fp16, Feature::fp16);
  all.add_if(config.products == Products::fp8, Feature::float8_products);
  all.add_if(config.tied, Feature::tied);
  all.add_if(config.skips != SkipShape::none, Feature::skips);
  all.add_if(config.experts.count > 0, Feature::experts);
  all.add_if(config.experts.count > 0 && config.experts.capacity_factor > 0, Feature::expert_capacity);
  all.add_several(Feature::vocab_tiles, config.vocab_tiles);
  all.add_several(Feature::mlp_tiles, config.mlp_tiles);
  all.add_several(Feature::mlp_row_tiles, config.mlp_row_tiles);
  all.add_several(Feature::attention_tiles, config.attention_tiles);
  return all;
}

ModelShape shape_of(const Transformer& t) {
  return {.layers = 2 * t.layers + 2,
          .heads = t.heads,
          .ffn = t.ffn,
          .seq_len = t.seq_len,
          .experts = t.experts.count,
          .kv_heads = t.kv_heads,
          .hidden = t.hidden,
          .attended = t.attended()};
}

const Transformer& checked(const Transformer& config) {
  check_sizes(config);
  check_adapters(config);
  if (config.skips == SkipShape::u && config.layers < 3)
    refuse(
        "skip connections in a U need 3 layers, not {}: with fewer, each layer already reads every result that it "
        "could skip from",
        config.layers);
  check_tensors(config);
  check_norms(config);
  check_rotation(config);
  check_scales(config);
  check_experts(config.experts);
  demand_place(config.place, shape_of(config), features_of(config));
  check_tensor_ranks(config);
  check_tiles(config);
  if (config.dtype == DType::i32 || is_float8(config.dtype))
    refuse("dtype must be fp32, bf16, fp16 or fp64, not {}", name_of(config.dtype));
  if (config.products == Products::fp8) check_float8(config);
  return config;
}

}  // namespace terrace::layers
