"""Directories of Hugging Face's library, both ways, for every family.

    model_directories.py TERRACE FOLDER [FAMILY…]

The library makes a small model of each family with random weights and writes it. terrace reads the directory, says the loss of a
text (a step with a learning rate that changes nothing), its gradients (a step without momentum that is so long that the weights before it do not
matter), trains ten AdamW steps beside PyTorch, and exports a directory that the library loads: its logits must be those of the weights that PyTorch
trained. Prints the largest deviations; a gradient's is relative to the largest one of its tensor. Exit code 77: a module is absent.
"""

import pathlib
import shutil
import sys

from terrace_runs import losses, terrace

SKIPPED = 77
try:
    import torch
    import transformers
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install torch transformers runs this test")
    sys.exit(SKIPPED)

SEQ, BATCH, STEPS, RATE, EPS = 32, 4, 10, 1e-3, 1e-3
LONG = 1e4  # the learning rate of a step that reveals gradients
LIMITS = {"loss": 2e-5, "gradients": 2e-5, "ten losses": 1e-4, "logits": 2e-5, "exported logits": 2e-5}
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "vocab_size": 256}  # fmt: skip


def scaled(**scaling):
    """As the installed version of the library spells it."""
    newer = hasattr(transformers.LlamaConfig(), "rope_parameters")
    return {"rope_parameters": {"rope_theta": 10000.0, **scaling}} if newer else {"rope_scaling": scaling}


def long_rope():
    return scaled(rope_type="longrope", short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[2.0 + i for i in range(8)])


def by_layer_type(full, sliding):
    if hasattr(transformers.LlamaConfig(), "rope_parameters"):
        return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    scaling = {key: value for key, value in full.items() if key != "rope_theta"}
    return {"rope_theta": full["rope_theta"], "rope_local_base_freq": sliding["rope_theta"], "rope_scaling": scaling}


FAMILIES = {
    "gemma": lambda: transformers.GemmaConfig(**SIZES, head_dim=24, pad_token_id=None),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, head_dim=24, sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=0.5,
                                                final_logit_softcapping=0.75, pad_token_id=None),
    "gemma2, no caps": lambda: transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=9, attn_logit_softcapping=None,
                                                         final_logit_softcapping=None, pad_token_id=None),
    "gemma3": lambda: transformers.Gemma3TextConfig(**{**SIZES, "num_hidden_layers": 7}, head_dim=24, sliding_window=9, query_pre_attn_scalar=20,
                                                    pad_token_id=None),
    "gemma3, linear scaling": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=9, pad_token_id=None, **by_layer_type(
        {"rope_theta": 20000.0, "rope_type": "linear", "factor": 4.0}, {"rope_theta": 500.0, "rope_type": "default"}),
        layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "gemma3, with a part for images": lambda: transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=9, pad_token_id=None),
        vision_config=transformers.SiglipVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                                                      patch_size=14), mm_tokens_per_image=4),
    "gpt2": lambda: transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=SEQ, vocab_size=256, attn_pdrop=0,
                                            embd_pdrop=0, resid_pdrop=0),
    "llama": lambda: transformers.LlamaConfig(**SIZES, rope_theta=20000.0, rms_norm_eps=1e-6),
    "llama, tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama, llama3 scaling": lambda: transformers.LlamaConfig(**SIZES, **scaled(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                              high_freq_factor=4.0, original_max_position_embeddings=16)),
    "llama, linear scaling": lambda: transformers.LlamaConfig(**SIZES, **scaled(rope_type="linear", factor=4.0)),
    "llama, dynamic scaling": lambda: transformers.LlamaConfig(**{**SIZES, "max_position_embeddings": SEQ // 2},
                                                               **scaled(rope_type="dynamic", factor=2.0)),
    "llama, yarn scaling": lambda: transformers.LlamaConfig(**SIZES, **scaled(rope_type="yarn", factor=8.0,
                                                            original_max_position_embeddings=16)),
    "llama, yarn with mscale": lambda: transformers.LlamaConfig(**SIZES, **scaled(rope_type="yarn", factor=8.0, mscale=0.7, mscale_all_dim=0.4,
                                                                original_max_position_embeddings=16)),
    "llama, biases": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, exact GELU": lambda: transformers.LlamaConfig(**SIZES, hidden_act="gelu"),
    "gpt2, exact GELU": lambda: transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=SEQ, vocab_size=256, attn_pdrop=0,
                                                        embd_pdrop=0, resid_pdrop=0, activation_function="gelu"),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=9),
    "mistral, no window": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    "mistral, wide heads": lambda: transformers.MistralConfig(**SIZES, sliding_window=None, head_dim=24),
    "llama, wide heads": lambda: transformers.LlamaConfig(**SIZES, head_dim=32),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES, pad_token_id=None, eos_token_id=None),
    "phi3": lambda: transformers.Phi3Config(**SIZES, sliding_window=9, pad_token_id=None),
    "phi3, part of a head": lambda: transformers.Phi3Config(**SIZES, pad_token_id=None, partial_rotary_factor=0.75,
                                                            tie_word_embeddings=True),
    "phi3, longrope, short": lambda: transformers.Phi3Config(**SIZES, pad_token_id=None, original_max_position_embeddings=SEQ, **long_rope()),
    "phi3, longrope, long": lambda: transformers.Phi3Config(**SIZES, pad_token_id=None, original_max_position_embeddings=SEQ // 2, **long_rope()),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=32),
    "qwen3, tied": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SIZES, head_dim=32, moe_intermediate_size=48, num_experts=4, num_experts_per_tok=2,
                                                     norm_topk_prob=True),
    "qwen3_moe, gates of all": lambda: transformers.Qwen3MoeConfig(**SIZES, head_dim=16, moe_intermediate_size=48, num_experts=6,
                                                                   num_experts_per_tok=3, norm_topk_prob=False),
    "smollm3": lambda: transformers.SmolLM3Config(**{**SIZES, "num_hidden_layers": 5}, pad_token_id=None),
    "smollm3, other blocks": lambda: transformers.SmolLM3Config(**SIZES, pad_token_id=None, no_rope_layers=[0, 1, 1]),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2, windows": lambda: transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "smollm3, windows": lambda: transformers.SmolLM3Config(**{**SIZES, "num_hidden_layers": 5}, pad_token_id=None, use_sliding_window=True,
                                                           sliding_window=9),
}  # fmt: skip


# The ranks of terrace's runs.
RANKS = {
    "gemma2, tensor ranks": ["--tp", 2],
    "gemma3, tensor ranks": ["--tp", 4, "--sp"],
    "olmo2, tensor ranks": ["--tp", 4],
    "olmo2, tensor ranks and pieces": ["--tp", 2, "--sp", "--tp-overlap", 2],
}
FAMILIES |= {name: FAMILIES[name.split(",")[0]] for name in RANKS}


def random_weights(model, seed):
    """Norms and biases too: one that is forgotten must show. Gemma's norms add 1 to their weights themselves."""
    gain = 0.0 if model.config.model_type.startswith("gemma") else 1.0
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = gain if "norm" in name or "ln_" in name else 0.0
            weight.copy_(mean * (weight.dim() == 1 and "bias" not in name) + 0.08 * torch.randn(weight.shape, generator=generator))


def language_model_of(model):
    """Of a model with further parts, such as one for images."""
    if not hasattr(model.config, "text_config"):
        return model
    text = transformers.AutoModelForCausalLM.from_config(model.config.text_config, attn_implementation="eager")
    text.model.load_state_dict(model.model.language_model.state_dict())
    text.tie_weights()
    return text


def trained(model, inputs, targets):
    """AdamW as terrace is told to do it: decay for matrices, clipping by the global norm."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.95), eps=EPS)  # fmt: skip
    said = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1).double(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        said.append(loss.item())
    return said


def largest(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def gradients_deviate(stepped, model, inputs, targets):
    """Of all tensors, the largest deviation."""
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1).double(), targets.flatten()).backward()
    after = dict(stepped.named_parameters())
    found = {name: largest((p - after[name]) / LONG, p.grad) for name, p in model.named_parameters()}
    model.zero_grad()
    return max(found.values())


def compare(program, folder, name, config):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    random_weights(model, 7)
    model.tie_weights()
    model.save_pretrained(folder / "model", max_shard_size="100KB")
    model = language_model_of(model)
    tokens = torch.randint(0, 256, (BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(5))
    (folder / "text").write_bytes(bytes(tokens.tolist()))
    inputs, targets = tokens[: BATCH * SEQ].view(BATCH, SEQ), tokens[1 : BATCH * SEQ + 1].view(BATCH, SEQ)

    common = ["--model", "model", "--data", "text", "--data-format", "bytes",
              "--seq-len", SEQ, "--batch-size", BATCH, "--eval-batches", 0, "--warmup", 0,
              "--lr-schedule", "constant", "--eps", EPS, "--device-memory", "unlimited", "--host-memory", "unlimited",
              *RANKS.get(name, [])]  # fmt: skip
    terrace(program, folder, "train", *common, "--steps", 1, "--lr", 1e-30, "--min-lr", 1e-30, "--out-dir", "still")
    terrace(program, folder, "ckpt", "export", "still", "still-model")
    terrace(program, folder, "train", *common, "--steps", 1, "--lr", LONG, "--min-lr", LONG, "--optimizer", "sgd", "--momentum", 0,
            "--weight-decay", 0, "--grad-clip", 0, "--out-dir", "long")  # fmt: skip
    terrace(program, folder, "ckpt", "export", "long", "long-model")
    terrace(program, folder, "train", *common, "--steps", STEPS, "--lr", RATE, "--out-dir", "run")
    terrace(program, folder, "ckpt", "export", "run", "run-model")

    model.eval()
    with torch.no_grad():
        logits = model(inputs).logits
    still = transformers.AutoModelForCausalLM.from_pretrained(folder / "still-model", attn_implementation="eager").eval()
    with torch.no_grad():
        same = still(inputs).logits
    first = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten()).item()
    stepped = transformers.AutoModelForCausalLM.from_pretrained(folder / "long-model", attn_implementation="eager")
    with torch.enable_grad():
        gradients = gradients_deviate(stepped, model, inputs, targets)
    said = trained(model, inputs, targets)
    after = transformers.AutoModelForCausalLM.from_pretrained(folder / "run-model", attn_implementation="eager").eval()
    with torch.no_grad():
        ours, theirs = after(inputs).logits, model.eval()(inputs).logits
    mine = losses(folder, "run")
    found = {
        "loss": abs(losses(folder, "still")[0] - first) / first,
        "gradients": gradients,
        "ten losses": max(abs(a - b) / b for a, b in zip(mine, said, strict=True)),
        "logits": largest(same, logits),
        "exported logits": largest(ours, theirs),
    }
    print(f"{name}: " + ", ".join(f"{what} {value:.1e}" for what, value in found.items()), flush=True)
    return [f"{name}: {what} differs by {found[what]:.1e}, more than {limit}" for what, limit in LIMITS.items() if found[what] > limit]


def main():
    program, folder = pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute()
    only = sys.argv[3:]  # only these families
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    wrong = [text for name, make in FAMILIES.items() if not only or name.split(",")[0] in only for text in compare(program, folder / "model", name, make())]
    if wrong:
        sys.exit("\n".join(wrong))


main()
