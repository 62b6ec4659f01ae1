// Llama (Touvron et al. 2023), as in Hugging Face's LlamaForCausalLM.
#include <terrace/examples/lm/family.h>

namespace terrace::lm {

extern constexpr Family kLlama = checked(Family{
    .name = "llama",
    .norm = NormKind::rms,
    // Llama 3.1 and others change the angles of long positions: the scaling.
    .positions =
        RotaryPositions{.base = {.usual = 10000, .varies = true, .keys = {"/rope_theta", "/rope_parameters/rope_theta"}},
                        .scaling_keys = {"rope_scaling", "rope_parameters"}},
    .activation = Activation::swiglu,
    .grouped_heads = true,
    // 8/3 · hidden, rounded up to a multiple of 64.
    .usual_ffn = [](std::int64_t hidden) { return (8 * hidden + 3 * 64 - 1) / (3 * 64) * 64; },
    .norm_eps = {.usual = 1e-5, .varies = true, .keys = {"/rms_norm_eps"}},
    .heads_keys = {"/num_attention_heads"},
    .matrices = MatrixOrder::out_in,
    .tensors = {.optional_prefix = "",
                .embedding = "model.embed_tokens",
                .final_norm = "model.norm",
                .head = "lm_head",
                .block = "model.layers.",
                .attention_norm = "input_layernorm",
                .mlp_norm = "post_attention_layernorm",
                .qkv = {.tensors = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, .bias = false},
                .attention_output = {.tensors = {"self_attn.o_proj"}, .bias = false},
                .up = {.tensors = {"mlp.gate_proj", "mlp.up_proj"}, .bias = false},
                .down = {.tensors = {"mlp.down_proj"}, .bias = false},
                .buffers = {".rotary_emb.inv_freq"}},  // the frequencies of rotary positions
});

}  // namespace terrace::lm
