#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/examples/lm/model_config.h>

namespace terrace::lm {
namespace {

constexpr std::int64_t kByteTokens = 256;
constexpr std::int64_t kLargestWidth = 1 << 20;  // products of three such sizes still fit an int64

[[noreturn]] void refuse(const std::string& what) { throw Error("model: " + what, Exit::usage); }

void require_size(const char* field, std::int64_t value, std::int64_t largest) {
  if (value < 1) refuse(fmt::format("{} must be at least 1, not {}", field, value));
  if (value > largest) refuse(fmt::format("{} must be at most {}, not {}", field, largest, value));
}

// The divisor of `whole` nearest to `value`; of two, the smaller.
std::int64_t nearest_divisor(std::int64_t whole, std::int64_t value) {
  for (std::int64_t distance = 0; distance < whole; ++distance) {
    for (const std::int64_t d : {value - distance, value + distance}) {
      if (d >= 1 && whole % d == 0) return d;
    }
  }
  return whole;
}
// Text for the multiples of `unit` around a value.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit, above = below + unit;
  return below == 0 ? fmt::format("{}", above) : fmt::format("{} or {}", below, above);
}

void validate_parts(const ModelConfig& config) {
  const std::int64_t ranks = config.tensor.ranks;
  const auto demand_whole = [&](const char* name, std::int64_t value) {
    if (value % ranks == 0) return;
    refuse(fmt::format("{} tensor ranks do not divide {} ({}): the nearest are {} tensor ranks, or {} {}", ranks, name, value,
                       nearest_divisor(value, ranks), name, nearest_multiples(value, ranks)));
  };
  if (ranks < 1) refuse("a model is on at least one tensor rank");
  demand_whole("heads", config.heads);
  demand_whole("ffn", config.ffn);
  const std::int64_t kv = config.kv_heads;
  if (kv % ranks != 0 && ranks % kv != 0) {
    refuse(fmt::format("{} tensor ranks cannot share {} key-value heads evenly: the nearest is {} tensor ranks", ranks, kv,
                       nearest_divisor(kv, ranks)));
  }
  if (ranks > kv && config.family.get().tensors.qkv.tensors.size() == 1) {
    refuse(
        fmt::format("{} keeps q, k and v in one tensor, of which ranks that share key-value heads would have different "
                    "parts: the most are {} tensor ranks",
                    *config.family.get().name, kv));
  }
  if (config.vocab < ranks) refuse(fmt::format("{} tensor ranks are more than the vocabulary of {}", ranks, config.vocab));
}

}  // namespace

SkipShape parse_skips(std::string_view text) {
  if (text == "none") return SkipShape::none;
  if (text == "u") return SkipShape::u;
  refuse(fmt::format("'{}' is not a shape of skip connections; accepted are none and u", text));
}

double ModelConfig::residual_init_std() const { return init_std() / std::sqrt(2.0 * static_cast<double>(layers)); }

std::uint32_t ModelConfig::kv_ways() const {
  return static_cast<std::uint32_t>(std::min(kv_heads, std::int64_t{tensor.ranks}));
}

Block ModelConfig::vocab_here() const { return block_of(vocab, static_cast<int>(tensor.rank), static_cast<int>(tensor.ranks)); }

ModelConfig complete(ModelConfig config) {
  require_size("hidden", config.hidden, kLargestWidth);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  const Family& family = config.family;
  if (config.ffn == 0) config.ffn = (*family.usual_ffn)(config.hidden);
  if (config.norm_eps == 0) config.norm_eps = *family.norm_eps.usual;
  if (const auto* const rotary = rotary_positions(family); rotary && config.rope_theta == 0) {
    config.rope_theta = *rotary->base.usual;
  }
  validate(config);
  config.tensor.twins = config.tensor.ranks / config.kv_ways();
  return config;
}

void validate(const ModelConfig& config) {
  const Family& family = config.family;
  const auto* const rotary = rotary_positions(family);
  require_size("layers", config.layers, 1 << 16);
  require_size("hidden", config.hidden, kLargestWidth);
  require_size("heads", config.heads, kLargestWidth);
  require_size("kv_heads", config.kv_heads, kLargestWidth);
  require_size("ffn", config.ffn, std::int64_t{1} << 24);
  require_size("seq_len", config.seq_len, std::int64_t{1} << 24);
  require_size("vocab", config.vocab, std::numeric_limits<std::int32_t>::max());
  if (config.hidden % config.heads != 0) {
    refuse(fmt::format("heads ({}) do not divide hidden ({}): the nearest are heads {}, or hidden {}", config.heads,
                       config.hidden, nearest_divisor(config.hidden, config.heads),
                       nearest_multiples(config.hidden, config.heads)));
  }
  if (!*family.grouped_heads && config.kv_heads != config.heads) {
    refuse(fmt::format("{} has a key-value head for each head: kv_heads must be {}, not {} (grouped heads: model {})",
                       *family.name, config.heads, config.kv_heads,
                       names_of_families("or", [](const Family& other) { return *other.grouped_heads; })));
  }
  if (config.heads % config.kv_heads != 0) {
    refuse(fmt::format("kv_heads ({}) do not divide heads ({}): the nearest is kv_heads {}", config.kv_heads, config.heads,
                       nearest_divisor(config.heads, config.kv_heads)));
  }
  if (rotary && config.head_dim() % 2 != 0) {
    refuse(fmt::format("rotary positions need heads of even width, not hidden {} / heads {} = {}: the nearest is hidden {}",
                       config.hidden, config.heads, config.head_dim(), nearest_multiples(config.hidden, 2 * config.heads)));
  }
  if (config.skips == SkipShape::u && config.layers < 3) {
    refuse(
        fmt::format("skip connections in a U need 3 layers, not {}: with fewer, each layer already reads every result that it "
                    "could skip from",
                    config.layers));
  }
  if (config.vocab < kByteTokens) {
    refuse(fmt::format("vocab ({}) is smaller than the {} byte tokens: the nearest is vocab {}", config.vocab, kByteTokens,
                       kByteTokens));
  }
  if (!(config.norm_eps > 0) || !std::isfinite(config.norm_eps)) {
    refuse(fmt::format("norm_eps must be positive, not {}", config.norm_eps));
  }
  if (rotary && (!(config.rope_theta > 0) || !std::isfinite(config.rope_theta))) {
    refuse(fmt::format("rope_theta must be positive, not {}", config.rope_theta));
  }
  if (!rotary && config.rope_theta != 0) {
    refuse(fmt::format("{} rotates nothing: rope_theta must be 0, not {} (rotary positions: model {})", *family.name,
                       config.rope_theta,
                       names_of_families("or", [](const Family& other) { return rotary_positions(other) != nullptr; })));
  }
  validate_parts(config);
  if (config.dtype == DType::i32) refuse("dtype must be fp32, bf16, fp16 or fp64, not i32");
}

}  // namespace terrace::lm
