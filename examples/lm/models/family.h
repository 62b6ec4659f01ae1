// A model family, such as GPT-2 or Llama, as data: the parts of its blocks, the default values of its options, and its tensor
// names in weight files.
//
// A family is one file in families/ and its entry in families/list.cpp. Code that builds models (transformer_of() in
// model_config.h), reads options or reads files uses the properties below and never a family's name. No property has a default,
// so a family that leaves one out does not compile. checked() refuses contradictory properties, also at compile time.
//
// Owner:   families are constants.
// Threads: any.
// Errors:  Error(ErrorKind::refused) for an unknown name; it lists the known ones.
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

// A short list of words. An empty list must be stated, too: none().
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

// Kinds that the layers define.
using layers::MatrixOrder;
using layers::NormKind;
using layers::QueryKeyNorms;

// A number that is in no tensor. Hugging Face's models have it in their config.json.
struct ConfigNumber {
  Stated<double> usual;
  Stated<bool> varies;  // differs between published models of the family: if a file does not tell it, a warning is due
  // JSON pointers into config.json, those of older versions first. If a file has several, the last one counts. --save writes
  // the number under word_of() into its file.
  Words keys;
};

// The last word of the first key: "rope_theta".
constexpr std::string_view word_of(const Words& keys) { return keys[0].substr(keys[0].rfind('/') + 1); }

// A cap c: a number x becomes c · tanh(x / c). `key`: its key in config.json, where null means no cap; "": the family has none.
struct CapNumber {
  Stated<std::string_view> key;
  Stated<double> usual;  // 0: none
};

// Numbers in which the arithmetic of families differs.
struct Scales {
  Stated<double> norm_offset;             // added to the weights of norms
  Stated<bool> embedding_by_root;         // rows of the embedding are multiplied by the square root of their width
  Stated<std::string_view> query_scalar;  // scores are divided by the root of this key's number; "": always of a head's width
  Stated<double> untold_query_scalar;     // the number if a file does not have the key
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
  // Pointers to objects in config.json that change the angles (rope_scaling.h). The first one that is not empty counts. If
  // blocks with a window have their own object, the entries of the first object override those of the second instead.
  Words scaling_keys;
  Stated<std::string_view> only_scaling;  // the only kind that the library accepts in this family; "": all kinds
  Words fraction_keys;  // pointers to the rotated part of a head, as ConfigNumber::keys; none: always the whole head
  // blocks_key: a list in config.json with 1 for each block that rotates, else 0. every_key: a number n; every n-th block does
  // not rotate. "": the family has no such key. plain_every: n if the file has neither; 0: all blocks rotate.
  Stated<std::string_view> blocks_key, every_key;
  Stated<std::int64_t> plain_every;
  // Blocks with a window: their rotary base, its keys as ConfigNumber's, and the pointer to the object that newer files have
  // for these blocks. Their angles are never scaled. "": they rotate like the others.
  Stated<double> window_base;
  Words window_base_keys;
  Stated<std::string_view> window_scaling_key;
};
using Positions = std::variant<LearnedPositions, RotaryPositions>;

// A product with weights. Results with the same input (q, k, v; gate, up) are in one tensor or in one tensor each.
struct ProjectionParts {
  Words tensors;
  Stated<bool> bias;  // of each tensor
};

// Names in a block that has a mixture of experts instead of an MLP; the number of an expert follows `experts`.
struct ExpertNames {
  Stated<std::string_view> router, experts;
  Words up, down;  // in each expert
};

// Tensor names, without the endings ".weight" and ".bias".
struct TensorNames {
  Stated<std::string_view> optional_prefix;  // files may leave it out; may be empty
  Stated<std::string_view> embedding, final_norm, head;
  Stated<std::string_view> block;  // followed by the number of a block
  // Names inside a block.
  Stated<std::string_view> attention_norm, mlp_norm;                // before each half of a block; "": none
  Stated<std::string_view> attention_result_norm, mlp_result_norm;  // norm of what each half adds; "": none
  Stated<std::string_view> q_norm, k_norm;                          // "": none
  ProjectionParts qkv, attention_output, up, down;
  ExpertNames experts;
  Words buffers;  // endings of names in old files that are not weights, such as masks
};

// A key of config.json and the value, as JSON text, that matches what terrace computes; further texts mean the same value. A
// file without the key means it, too. With any other value the file is refused.
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

// Which blocks have the window if there is no layer_types: all; all but every n-th; those from block n on, counted from 0;
// those that do not rotate.
enum class Windowed : std::uint8_t { all, all_but_last, later, unrotated };

// The sliding window of attention in config.json.
struct WindowKeys {
  Stated<std::string_view> size;  // null: no window; "": the family has no window
  Stated<std::string_view> used;  // a flag that must be true for any block to have the window; "": the window is always used
  Stated<Windowed> blocks;
  Stated<std::string_view> number;    // the key of Windowed's n; "": the family has no such key
  Stated<std::int64_t> usual_number;  // n if the file does not have the key
  Stated<bool> types;                 // the library reads layer_types in this family
};
inline constexpr WindowKeys kNoWindow{
    .size = "", .used = "", .blocks = Windowed::all, .number = "", .usual_number = 0, .types = false};

// A model with further parts, such as one for images, that contains this language model. The language model's keys are in the
// object text_config of its config.json, and its tensors have a prefix; all other tensors belong to the other parts.
struct Wrapper {
  Stated<std::string_view> type;      // its model_type; "": there is none
  Stated<std::string_view> defaults;  // JSON for keys that text_config does not have: files only have unusual values
  Stated<std::string_view> prefix;
};
inline constexpr Wrapper kNoWrapper{.type = "", .defaults = "", .prefix = ""};

// The config.json of a model in a directory of Hugging Face's library: the keys of its sizes ("": the family has none), in
// addition to the keys above.
struct ModelFile {
  Stated<std::string_view> type, architecture;  // "llama", "LlamaForCausalLM"
  Stated<std::string_view> layers, hidden, kv_heads, ffn, positions;
  Stated<std::string_view> head_dim;    // "": hidden size divided by heads, always
  Stated<std::int64_t> usual_head_dim;  // if the file does not tell it; 0: hidden size divided by heads
  Stated<bool> heads_divide;            // heads must always divide the hidden size in the library
  WindowKeys window;
  Stated<std::string_view> activation;  // key of the MLP function's name; "": always the family's
  // Keys of flags: whether the products of attention, and of the MLP, have biases; "": as in the family's tensors.
  Stated<std::string_view> attention_bias, mlp_bias;
  Stated<bool> tied;                // if the file does not have tie_word_embeddings
  Stated<std::string_view> untold;  // the library's defaults for absent keys, as JSON
  FixedValues fixed;
  // experts: keys of the number of experts in different versions of the library; none: the family has no mixture of experts.
  // experts_per_token: key of the number of experts that a token chooses. renormalise: key of a flag, whether the gates of a
  // token are scaled to the sum 1, by default false; "": they always are.
  Words experts;
  Stated<std::string_view> experts_per_token, renormalise;
  Wrapper wrapper;
  Words unused;  // further keys that do not change what this family computes
};

struct Family {
  Stated<std::string_view> name;  // for --model

  // The parts of a block.
  Stated<NormKind> norm;
  Scales scales;
  Stated<QueryKeyNorms> query_key_norms;
  Stated<Positions> positions;
  Stated<Activation> activation;
  Stated<bool> grouped_heads;  // whether there may be fewer key-value heads than heads

  // Default values of options.
  Stated<std::int64_t (*)(std::int64_t hidden)> usual_ffn;
  ConfigNumber norm_eps;
  Words heads_keys;  // of the number of heads, as in ConfigNumber::keys

  ModelFile file;

  // Weight files.
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

// Returns the family if its properties do not contradict each other.
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
  // g++ with -fsanitize=undefined does not accept a comparison with null as a constant expression; every compiler refuses a
  // call through null.
  if ((*family.usual_ffn)(64) < 1) throw std::logic_error("the MLP needs its usual width");
  return family;
}

// All families, in the order in which users see them. Only families/list.cpp defines it; a program with its own families
// defines it instead.
std::span<const Family* const> families();
const Family& family_named(std::string_view name);
// The names of all families, or only of those for which `has` is true, with `between` before the last one: "gpt2 and llama".
std::string names_of_families(std::string_view between, bool (*has)(const Family&) = nullptr);

}  // namespace terrace::lm
