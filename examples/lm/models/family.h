// A model family, such as GPT-2 or Llama, as data: the parts of its blocks, the usual values of its options, and the names in
// its files of weights.
//
// A family is one file in families/ and its entry in families/list.cpp. The model that is built (transformer_of() in
// model_config.h), options and readers of files ask for the properties below and never for a family's name. A family must
// state every property: there are no defaults, so one that is left out does not compile. checked() refuses, also at compile
// time, properties that contradict each other.
//
// Owner:   families are constants.
// Threads: any.
// Errors:  Error(Exit::usage) for an unknown name, with the known ones.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>

#include <terrace/core/math/math.h>
#include <terrace/parallel/layers/parts/transformer.h>

namespace terrace::lm {

// A property without a default value.
template <class T>
class Stated {
 public:
  template <std::convertible_to<T> U>
  constexpr Stated(const U& value) : value_(value) {}  // not explicit: a property is its value
  constexpr const T& operator*() const { return value_; }

 private:
  T value_;
};

// A few words. No word at all must be stated, too: none().
class Words {
 public:
  template <class... More>
  constexpr Words(std::string_view first, More... more) : words_{first, more...}, size_(1 + sizeof...(more)) {}
  static constexpr Words none() { return {}; }

  [[nodiscard]] constexpr const std::string_view* begin() const { return words_.data(); }
  [[nodiscard]] constexpr const std::string_view* end() const { return words_.data() + size_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  constexpr std::string_view operator[](std::size_t i) const { return words_[i]; }

 private:
  constexpr Words() = default;
  std::array<std::string_view, 4> words_;
  std::size_t size_ = 0;
};

// Properties that the layers have kinds of.
using layers::MatrixOrder;
using layers::NormKind;
using layers::QueryKeyNorms;

// A number that no tensor has. Hugging Face's models have it in their config.json.
struct ConfigNumber {
  Stated<double> usual;
  Stated<bool> varies;  // between published models of the family: a file that does not tell it deserves a warning
  // JSON pointers into config.json, those of older versions first: the last one that a file has counts. --save writes the
  // number under word_of() into its file.
  Words keys;
};

// The last word of the first key: "rope_theta".
constexpr std::string_view word_of(const Words& keys) { return keys[0].substr(keys[0].rfind('/') + 1); }

// A cap c of numbers x, which become c · tanh(x / c). Its key in config.json, where null is none; "": the family has none.
struct CapNumber {
  Stated<std::string_view> key;
  Stated<double> usual;  // 0: none
};

// By which numbers the arithmetic of families differs.
struct Scales {
  Stated<double> norm_offset;             // added to the weights of norms
  Stated<bool> embedding_by_root;         // rows of the embedding are multiplied by the square root of their width
  Stated<std::string_view> query_scalar;  // key of the number by whose root scores are divided; "": a head's width, always
  Stated<double> untold_query_scalar;     // of a file without it
  CapNumber attention_cap, logit_cap;     // of scores, and of the head's results
};
inline constexpr Scales kPlainScales{.norm_offset = 0,
                                     .embedding_by_root = false,
                                     .query_scalar = "",
                                     .untold_query_scalar = 0,
                                     .attention_cap = {.key = "", .usual = 0},
                                     .logit_cap = {.key = "", .usual = 0}};

// A vector for each position of a sequence is added to the embedding.
struct LearnedPositions {
  Stated<std::string_view> tensor;
};
// The attention rotates pairs of elements of q and k by angles that grow with the position.
struct RotaryPositions {
  ConfigNumber base;
  // Pointers to objects in config.json that change the angles (rope_scaling.h). The first one that is not empty counts, unless
  // blocks with a window have an object of their own: then the first one is laid over the second.
  Words scaling_keys;
  Stated<std::string_view> only_scaling;  // the one kind that the library has in this family; "": it has all
  Words fraction_keys;  // of the part of a head that is rotated, as ConfigNumber::keys; none: all of it, always
  // A list in config.json of 1 for blocks that rotate and 0 for others, or the number of blocks of which the last one does not;
  // "": all do. plain_every: that number if neither is told; 0: all do.
  Stated<std::string_view> blocks_key, every_key;
  Stated<std::int64_t> plain_every;
  // Of blocks with a window, whose angles are never changed: their base, with its keys as ConfigNumber's, and the object that
  // newer files have for them; none: they rotate as the others do.
  Stated<double> window_base;
  Words window_base_keys;
  Stated<std::string_view> window_scaling_key;
};
using Positions = std::variant<LearnedPositions, RotaryPositions>;

// A product with weights. Several results of one input (q, k, v; gate, up) are one tensor, or one each.
struct ProjectionParts {
  Words tensors;
  Stated<bool> bias;  // of each tensor
};

// Of a mixture of experts instead of an MLP, in a block; the number of an expert stands behind `experts`.
struct ExpertNames {
  Stated<std::string_view> router, experts;
  Words up, down;  // of an expert
};

// Names without their endings ".weight" and ".bias".
struct TensorNames {
  Stated<std::string_view> optional_prefix;  // files may leave it out; may be empty
  Stated<std::string_view> embedding, final_norm, head;
  Stated<std::string_view> block;  // stands before the number of a block
  // In a block.
  Stated<std::string_view> attention_norm, mlp_norm;                // before each half of a block; "": none
  Stated<std::string_view> attention_result_norm, mlp_result_norm;  // of what each half adds; "": none
  Stated<std::string_view> q_norm, k_norm;                          // "": none
  ProjectionParts qkv, attention_output, up, down;
  ExpertNames experts;
  Words buffers;  // endings of names in old files that are not weights, such as masks
};

// A value in config.json with which the model computes what the family does, as JSON text; a file without the key means it,
// too. Other texts that mean the same stand behind it. Any other value is another model.
struct FixedValue {
  std::string_view key;
  std::array<std::string_view, 3> values;
};
class FixedValues {
 public:
  template <std::same_as<FixedValue>... More>
  constexpr FixedValues(const FixedValue& first, const More&... more) : values_{first, more...}, size_(1 + sizeof...(more)) {}
  static constexpr FixedValues none() { return {}; }
  [[nodiscard]] constexpr const FixedValue* begin() const { return values_.data(); }
  [[nodiscard]] constexpr const FixedValue* end() const { return values_.data() + size_; }

 private:
  constexpr FixedValues() = default;
  std::array<FixedValue, 8> values_ = {};
  std::size_t size_ = 0;
};

// The blocks that have the window, if layer_types do not tell: every one; all but the last of each so many; all from the one of
// a number on, counted from 0; those that rotate nothing.
enum class Windowed : std::uint8_t { all, all_but_last, later, unrotated };

// The sliding window of attention in config.json.
struct WindowKeys {
  Stated<std::string_view> size;  // null: none; "": the family has no window
  Stated<std::string_view> used;  // of a truth value, without which no block has the window; "": the window is always used
  Stated<Windowed> blocks;
  Stated<std::string_view> number;    // of Windowed; "": it is never told
  Stated<std::int64_t> usual_number;  // if it is not told
  Stated<bool> types;                 // the library reads layer_types in this family
};
inline constexpr WindowKeys kNoWindow{
    .size = "", .used = "", .blocks = Windowed::all, .number = "", .usual_number = 0, .types = false};

// A model with further parts, such as one for images, of which this one is the language model. Its config.json has this model's
// keys in the object text_config, and its files have this model's tensors with a prefix; all others are of the other parts.
struct Wrapper {
  Stated<std::string_view> type;      // its model_type; "": there is none
  Stated<std::string_view> defaults;  // of what text_config does not tell, as JSON: files have only what is unusual
  Stated<std::string_view> prefix;
};
inline constexpr Wrapper kNoWrapper{.type = "", .defaults = "", .prefix = ""};

// The config.json of a model in a directory of Hugging Face's library: the keys of its sizes ("": the family has none), beside
// those of the numbers above.
struct ModelFile {
  Stated<std::string_view> type, architecture;  // "llama", "LlamaForCausalLM"
  Stated<std::string_view> layers, hidden, kv_heads, ffn, positions;
  Stated<std::string_view> head_dim;    // "": hidden size divided by heads, always
  Stated<std::int64_t> usual_head_dim;  // if it is not told; 0: hidden size divided by heads
  Stated<bool> heads_divide;            // the library wants heads to divide the hidden size, whatever their width
  WindowKeys window;
  Stated<std::string_view> activation;  // the function of the MLP by its name; "": it is the family's
  // Keys of true or false: whether attention's products, and those of the MLP, have biases; "": as in the family's tensors.
  Stated<std::string_view> attention_bias, mlp_bias;
  Stated<bool> tied;                // if tie_word_embeddings is not told
  Stated<std::string_view> untold;  // what the library takes for keys that a file does not have, as JSON
  FixedValues fixed;
  // The number of experts, by the names that versions gave it, and of those that a token chooses; none: the family has no
  // mixture of experts. renormalise: whether the gates of a token add up to 1, which they do not if it is not told; "": they
  // do.
  Words experts;
  Stated<std::string_view> experts_per_token, renormalise;
  Wrapper wrapper;
  Words unused;  // further keys that change nothing in this family
};

struct Family {
  Stated<std::string_view> name;  // for --model

  // The parts of blocks.
  Stated<NormKind> norm;
  Scales scales;
  Stated<QueryKeyNorms> query_key_norms;
  Stated<Positions> positions;
  Stated<Activation> activation;
  Stated<bool> grouped_heads;  // there may be fewer key-value heads than heads

  // The values of options that are not given.
  Stated<std::int64_t (*)(std::int64_t hidden)> usual_ffn;
  ConfigNumber norm_eps;
  Words heads_keys;  // of the number of heads, as ConfigNumber::keys

  ModelFile file;

  // Files of weights.
  Stated<MatrixOrder> matrices;
  TensorNames tensors;
};

constexpr const LearnedPositions* learned_positions(const Family& family) {
  return std::get_if<LearnedPositions>(&*family.positions);
}
constexpr const RotaryPositions* rotary_positions(const Family& family) {
  return std::get_if<RotaryPositions>(&*family.positions);
}
constexpr const ConfigNumber* rotary_base(const Family& family) {
  const auto* const rotary = rotary_positions(family);
  return rotary ? &rotary->base : nullptr;
}

// The family itself, if its properties agree with each other.
consteval Family checked(Family family) {
  const TensorNames& names = family.tensors;
  const auto demand_parts = [&](const ProjectionParts& projection, std::size_t results) {
    const std::size_t tensors = projection.tensors.size();
    if (tensors != 1 && tensors != results) throw std::logic_error("a projection needs one tensor, or one for each result");
    if (tensors != 1 && *family.matrices == MatrixOrder::in_out) {
      throw std::logic_error("matrices [inputs, outputs] of several tensors cannot be one product");
    }
  };
  demand_parts(names.qkv, 3);
  demand_parts(names.attention_output, 1);
  demand_parts(names.up, layers::up_results(*family.activation));
  demand_parts(names.down, 1);
  if (names.experts.up.size() != layers::up_results(*family.activation) || names.experts.down.size() != 1)
    throw std::logic_error("an expert has a tensor for each result");
  const bool has_norms = *family.query_key_norms != QueryKeyNorms::none;
  if ((*names.q_norm).empty() == has_norms || (*names.k_norm).empty() == has_norms)
    throw std::logic_error("norms of q and k have names");
  if ((*names.attention_result_norm).empty() != (*names.mlp_result_norm).empty())
    throw std::logic_error("both halves of a block have a norm of their result, or neither");

  const auto demand_keys = [](const Words& keys) {
    if (keys.size() == 0) throw std::logic_error("a value that no tensor has needs a key in config.json");
    for (const std::string_view key : keys) {
      if (!key.starts_with('/')) throw std::logic_error("a key in config.json is a JSON pointer, \"/name\"");
    }
  };
  demand_keys(family.heads_keys);
  demand_keys(family.norm_eps.keys);
  if (word_of(family.heads_keys) == word_of(family.norm_eps.keys)) {
    throw std::logic_error("two numbers have one word in a saved file");
  }
  if (!(*family.norm_eps.usual > 0)) throw std::logic_error("the norm epsilon is positive");
  if (const RotaryPositions* const rotary = rotary_positions(family)) {
    demand_keys(rotary->base.keys);
    const auto word = word_of(rotary->base.keys);
    if (word == word_of(family.heads_keys) || word == word_of(family.norm_eps.keys)) {
      throw std::logic_error("two numbers have one word in a saved file");
    }
    if (!(*rotary->base.usual >= 1)) throw std::logic_error("the rotary base is at least 1");
    if (!(*rotary->window_scaling_key).empty() && rotary->scaling_keys.size() != 2)
      throw std::logic_error("one object is laid over another");
    if ((*rotary->window_base != 0) != (rotary->window_base_keys.size() != 0))
      throw std::logic_error("the rotary base of blocks with a window has keys");
    for (const std::string_view key : rotary->scaling_keys)
      if (!key.starts_with('/')) throw std::logic_error("a key in config.json is a JSON pointer, \"/name\"");
  }
  // A comparison with null is no constant for g++ with -fsanitize=undefined; a call through null is refused by any compiler.
  if ((*family.usual_ffn)(64) < 1) throw std::logic_error("the MLP needs its usual width");
  return family;
}

// All families, in the order in which they are listed to users. Defined alone in families/list.cpp: a program that brings
// families of its own defines it instead.
std::span<const Family* const> families();
const Family& family_named(std::string_view name);
// The names of all families, or of those for which `has` is true, with `between` before the last one: "gpt2 and llama".
std::string names_of_families(std::string_view between, bool (*has)(const Family&) = nullptr);

}  // namespace terrace::lm
