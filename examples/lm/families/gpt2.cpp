// GPT-2 (Radford et al. 2019), as in Hugging Face's GPT2LMHeadModel.
#include <terrace/examples/lm/models/family.h>

namespace terrace::lm {

extern constexpr Family kGpt2 = checked(Family{
    .name = "gpt2",
    .norm = NormKind::layer,
    .scales = kPlainScales,
    .query_key_norms = QueryKeyNorms::none,
    .positions = LearnedPositions{.tensor = "transformer.wpe"},
    .activation = Activation::gelu_tanh,
    .grouped_heads = false,
    .usual_ffn = [](std::int64_t hidden) { return 4 * hidden; },
    .norm_eps = {.usual = 1e-5, .varies = false, .keys = {"/layer_norm_epsilon"}},
    .heads_keys = {"/n_head"},
    .file = {.type = "gpt2",
             .architecture = "GPT2LMHeadModel",
             .layers = "n_layer",
             .hidden = "n_embd",
             .kv_heads = "",
             .ffn = "n_inner",
             .positions = "n_positions",
             .head_dim = "",
             .usual_head_dim = 0,
             .heads_divide = true,
             .window = kNoWindow,
             .activation = "activation_function",
             .attention_bias = "",
             .mlp_bias = "",
             .tied = true,
             .untold = "{}",
             .fixed = {FixedValue{"scale_attn_weights", {"true"}}, FixedValue{"scale_attn_by_inverse_layer_idx", {"false"}},
                       FixedValue{"add_cross_attention", {"false"}}},
             .experts = Words::none(),
             .experts_per_token = "",
             .renormalise = "",
             .wrapper = kNoWrapper,
             .unused = Words::none()},
    .matrices = MatrixOrder::in_out,
    .tensors =
        {.optional_prefix = "transformer.",  // missing in OpenAI's first weight files
         .embedding = "transformer.wte",
         .final_norm = "transformer.ln_f",
         .head = "lm_head",
         .block = "transformer.h.",
         .attention_norm = "ln_1",
         .mlp_norm = "ln_2",
         .attention_result_norm = "",
         .mlp_result_norm = "",
         .q_norm = "",
         .k_norm = "",
         .qkv = {.tensors = {"attn.c_attn"}, .bias = true},
         .attention_output = {.tensors = {"attn.c_proj"}, .bias = true},
         .up = {.tensors = {"mlp.c_fc"}, .bias = true},
         .down = {.tensors = {"mlp.c_proj"}, .bias = true},
         .experts = {.router = "block_sparse_moe.gate", .experts = "block_sparse_moe.experts.", .up = {"w1"}, .down = {"w2"}},
         .buffers = {".attn.bias", ".attn.masked_bias"}},  // masks of causal attention
});

}  // namespace terrace::lm
