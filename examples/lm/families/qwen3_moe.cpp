// Qwen3's mixtures of experts (Yang et al. 2025), as in Hugging Face's Qwen3MoeForCausalLM: Qwen3 with experts in every block.
// Without --experts the model is dense; the library has no such model.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {
namespace {

consteval ModelFile qwen3_moe_file() {
  auto file = with_attention_bias(llama_file(
      "qwen3_moe", "Qwen3MoeForCausalLM", window_if_used(Windowed::all, "", 0, false),
      R"({"num_key_value_heads": 4, "moe_intermediate_size": 768, "sliding_window": 4096, "num_experts_per_tok": 8})",
      {FixedValue{"decoder_sparse_step", {"1"}}, FixedValue{"mlp_only_layers", {"[]"}},
       FixedValue{"output_router_logits", {"false"}}}));
  file.ffn = "moe_intermediate_size";
  file.experts = {"num_experts", "num_local_experts"};
  file.experts_per_token = "num_experts_per_tok";
  file.renormalise = "norm_topk_prob";
  // The first is the width of blocks without experts, and this model has none; the second is the weight of a loss that the
  // library only adds with output_router_logits.
  file.unused = {"intermediate_size", "router_aux_loss_coef"};
  return file;
}

consteval TensorNames qwen3_moe_tensors() {
  auto names = with_query_key_norms(llama_tensors(false));
  names.experts = {.router = "mlp.gate", .experts = "mlp.experts.", .up = {"gate_proj", "up_proj"}, .down = {"down_proj"}};
  return names;
}

consteval Family qwen3_moe() {
  auto family = llama_like("qwen3_moe", qwen3_moe_file(), qwen3_moe_tensors());
  family.query_key_norms = QueryKeyNorms::heads;
  family.norm_eps.usual = 1e-6;
  return family;
}

}  // namespace

extern constexpr Family kQwen3Moe = checked(qwen3_moe());

}  // namespace terrace::lm
