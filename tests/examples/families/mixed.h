// Families of the tests, each in this one file, that mix the parts of GPT-2 and Llama in ways that neither of them does. Their
// usual values differ from those of the others, so that a value that is read from the wrong place shows.
#pragma once

#include <terrace/examples/lm/family.h>

namespace terrace::test {

// Llama's positions and grouped heads with GPT-2's norms, activation and (some) biases; q, k and v are tensors of their own.
inline constexpr lm::Family kMixed = lm::checked(lm::Family{
    .name = "mixed",
    .norm = lm::NormKind::layer,
    .positions = lm::RotaryPositions{.base = {.usual = 50, .varies = true, .keys = {"/rotary_emb_base"}},
                                     .scaling_keys = {"rotary_scaling"}},
    .activation = Activation::gelu_tanh,
    .grouped_heads = true,
    .usual_ffn = [](std::int64_t hidden) { return 3 * hidden; },
    .norm_eps = {.usual = 1e-3, .varies = true, .keys = {"/norm/epsilon", "/layer_norm_eps"}},
    .heads_keys = {"/attention_heads"},
    .file = {.type = "mixed",
             .architecture = "MixedForCausalLM",
             .layers = "depth",
             .hidden = "width",
             .kv_heads = "groups",
             .ffn = "inner",
             .positions = "longest",
             .window = "sight",
             .tied = true,
             .fixed = {lm::FixedValue{"act", {"\"gelu\""}}}},
    .matrices = lm::MatrixOrder::out_in,
    .tensors = {.optional_prefix = "mixed.",
                .embedding = "mixed.embed",
                .final_norm = "mixed.last_norm",
                .head = "mixed.logits",
                .block = "mixed.blocks.",
                .attention_norm = "norm1",
                .mlp_norm = "norm2",
                .qkv = {.tensors = {"attention.q", "attention.k", "attention.v"}, .bias = true},
                .attention_output = {.tensors = {"attention.out"}, .bias = false},
                .up = {.tensors = {"up"}, .bias = false},
                .down = {.tensors = {"down"}, .bias = true},
                .buffers = lm::Words::none()},
});

// GPT-2's positions and order of matrices with Llama's norms, activation and grouped heads; gate and up are one tensor.
inline constexpr lm::Family kFused = lm::checked(lm::Family{
    .name = "fused",
    .norm = lm::NormKind::rms,
    .positions = lm::LearnedPositions{.tensor = "places"},
    .activation = Activation::swiglu,
    .grouped_heads = true,
    .usual_ffn = [](std::int64_t hidden) { return 2 * hidden + 1; },
    .norm_eps = {.usual = 1e-2, .varies = true, .keys = {"/eps"}},
    .heads_keys = {"/heads"},
    .file = {.type = "fused",
             .architecture = "FusedForCausalLM",
             .layers = "blocks",
             .hidden = "columns",
             .kv_heads = "kv",
             .ffn = "mlp",
             .positions = "places",
             .window = "",
             .tied = false,
             .fixed = {lm::FixedValue{"act", {"\"silu\""}}}},
    .matrices = lm::MatrixOrder::in_out,
    .tensors = {.optional_prefix = "",
                .embedding = "tokens",
                .final_norm = "norm_end",
                .head = "out",
                .block = "h.",
                .attention_norm = "norm_a",
                .mlp_norm = "norm_b",
                .qkv = {.tensors = {"qkv"}, .bias = false},
                .attention_output = {.tensors = {"o"}, .bias = true},
                .up = {.tensors = {"gate_up"}, .bias = true},
                .down = {.tensors = {"down"}, .bias = false},
                .buffers = {".mask"}},
});

}  // namespace terrace::test
