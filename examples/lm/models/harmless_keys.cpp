#include <terrace/examples/lm/models/harmless_keys.h>

#include <string_view>

#include <nlohmann/json.hpp>

namespace terrace::lm {
namespace {

using nlohmann::json;

// Harmless with any value. Each word has a space before and after it.
constexpr std::string_view kHarmless =
    // The model's origin and purpose.
    " architectures model_type name_or_path transformers_version unsloth_version unsloth_fixed internal_version is_llama_config"
    " transformers.js_config task_specific_params finetuning_task problem_type num_labels id2label label2id "
    // Tokens.
    " tokenizer_class prefix bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id"
    " predict_special_tokens n_ctx max_sequence_length "
    // Initial weights, and dropout, which terrace does not have.
    " initializer_range attention_dropout hidden_dropout attn_pdrop embd_pdrop resid_pdrop "
    // How the library runs the model.
    " torch_dtype dtype use_bfloat16 torchscript use_cache cache_implementation attn_implementation reorder_and_upcast_attn"
    " chunk_size_feed_forward gradient_checkpointing pretraining_tp output_past output_attentions output_hidden_states"
    " return_dict pruned_heads is_decoder is_encoder_decoder tie_encoder_decoder cross_attention_hidden_size max_window_layers "
    // Text generation; version 4 of the library also wrote these settings into this file.
    " do_sample temperature top_k top_p typical_p num_beams num_beam_groups diversity_penalty max_length min_length"
    " max_new_tokens length_penalty repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping"
    " num_return_sequences bad_words_ids forced_bos_token_id forced_eos_token_id decoder_start_token_id remove_invalid_values"
    " exponential_decay_length_penalty suppress_tokens begin_suppress_tokens output_scores return_dict_in_generate ";

bool is_harmless(const std::string& key) {
  if (key.starts_with('_') || key.starts_with("summary_")) return true;
  return key.find(' ') == std::string::npos && kHarmless.find(" " + key + " ") != std::string_view::npos;
}

// auto_map refers to code files beside the weights. It is harmless if the classes have the family's own name, because the
// library then has them, too.
bool maps_to_own_classes(const json& auto_map, const Family& family) {
  std::string_view stem = *family.file.architecture;
  stem = stem.substr(0, stem.find("For"));
  for (const auto& [use, named] : auto_map.items()) {
    if (use == "AutoTokenizer") continue;
    if (!named.is_string()) return false;
    const auto& path = named.get_ref<const std::string&>();
    if (!std::string_view(path).substr(path.rfind('.') + 1).starts_with(stem)) return false;
  }
  return true;
}

bool says_the_usual(const std::string& key, const json& config, const Family& family) {
  const auto& value = config.at(key);
  if (key == "use_qk_norm") return value == true && *family.query_key_norms != layers::QueryKeyNorms::none;
  if (key == "sliding_window_size") return config.contains("sliding_window") && value == config.at("sliding_window");
  if (key == "interpolate_factor" || key == "full_attn_mod") return value == 1;
  return key == "auto_map" && value.is_object() && maps_to_own_classes(value, family);
}

}  // namespace

FurtherKey further_key(const std::string& key, const json& config, const Family& family) {
  const auto& value = config.at(key);
  if (value.is_null() || is_harmless(key) || says_the_usual(key, config, family)) return FurtherKey::harmless;
  return value == false || (value.is_number() && value == 0) ? FurtherKey::off : FurtherKey::unknown;
}

}  // namespace terrace::lm
