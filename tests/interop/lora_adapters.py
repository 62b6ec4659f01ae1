"""LoRA adapters beside Hugging Face's PEFT, both ways.

    lora_adapters.py TERRACE FOLDER [FAMILY…]

The library makes a small model with random weights and writes it; PEFT puts adapters with random weights beside it and writes these. terrace reads
both, says the loss of a text (a step with a learning rate that changes nothing), the adapters' gradients (a step without momentum that is so long
that the weights before it do not matter), and trains ten AdamW steps beside PyTorch. What it exports is read by PEFT, and merged by the library: the
logits must be those of the adapters that PyTorch trained. Prints the largest deviations; a gradient's is relative to the largest one of its tensor.
Exit code 77: a module is absent.
"""

import pathlib
import shutil
import sys

from terrace_runs import losses, terrace

SKIPPED = 77
try:
    import peft
    import torch
    import transformers
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install torch transformers peft runs this test")
    sys.exit(SKIPPED)

transformers.utils.logging.disable_progress_bar()
SEQ, BATCH, STEPS, RATE, EPS = 32, 4, 10, 1e-3, 1e-3
LONG = 1e4  # the learning rate of a step that reveals gradients
LIMITS = {"loss": 2e-5, "gradients": 2e-5, "ten losses": 1e-4, "same adapter": 2e-5, "trained adapter": 1e-4, "merged": 1e-4}
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "vocab_size": 256}  # fmt: skip
QKV = ["q_proj", "k_proj", "v_proj"]
ALL = [*QKV, "o_proj", "gate_proj", "up_proj", "down_proj"]
MIXTRAL = lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
OF_EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# A model's configuration, terrace's targets, PEFT's names of the same modules and of experts' parameters, and terrace's ranks.
FAMILIES = {
    "llama": (lambda: transformers.LlamaConfig(**SIZES), "q,v", ["q_proj", "v_proj"]),
    "llama, all": (lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), "all", ALL),
    "llama, rsLoRA": (lambda: transformers.LlamaConfig(**SIZES), "all", ALL),
    "llama, tensor ranks": (lambda: transformers.LlamaConfig(**SIZES), "all", ALL, None, ["--tp", 4, "--sp"]),
    "llama, context ranks": (lambda: transformers.LlamaConfig(**SIZES), "all", ALL, None, ["--cp", 2, "--cp-mode", "ring"]),
    "qwen2": (lambda: transformers.Qwen2Config(**SIZES), "q,k,v,o", [*QKV, "o_proj"]),
    "mistral": (lambda: transformers.MistralConfig(**SIZES, sliding_window=9), "o,gate,down", ["o_proj", "gate_proj", "down_proj"]),
    "phi3": (lambda: transformers.Phi3Config(**SIZES, sliding_window=None, pad_token_id=None), "q,k,v,gate,up", ["qkv_proj", "gate_up_proj"]),
    "gemma3": (lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=24, sliding_window=9, pad_token_id=None), "all", ALL),
    "gemma": (lambda: transformers.GemmaConfig(**SIZES, head_dim=24, pad_token_id=None), "all", ALL),
    "gemma2": (lambda: transformers.Gemma2Config(**SIZES, head_dim=24, sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=0.5,
                                                 final_logit_softcapping=0.75, pad_token_id=None), "all", ALL),
    "olmo2": (lambda: transformers.Olmo2Config(**SIZES, pad_token_id=None, eos_token_id=None), "all", ALL),
    "qwen3": (lambda: transformers.Qwen3Config(**SIZES, head_dim=32), "all", ALL),
    "smollm3": (lambda: transformers.SmolLM3Config(**{**SIZES, "num_hidden_layers": 5}, pad_token_id=None), "all", ALL),
    "gemma3, tensor ranks": (lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=24, sliding_window=9, pad_token_id=None), "all", ALL,
                             None, ["--tp", 4, "--sp"]),
    "olmo2, tensor ranks": (lambda: transformers.Olmo2Config(**SIZES, pad_token_id=None, eos_token_id=None), "q,k,o,down",
                            ["q_proj", "k_proj", "o_proj", "down_proj"], None, ["--tp", 4]),
    "mixtral": (MIXTRAL, "q,v,gate,up,down", ["q_proj", "v_proj"], OF_EXPERTS),
    "mixtral, expert ranks": (MIXTRAL, "q,o,gate,up,down", ["q_proj", "o_proj"], OF_EXPERTS, ["--ep", 2, "--batch-size", 2]),
    "mixtral, expert and tensor ranks": (MIXTRAL, "gate,up,down", [], OF_EXPERTS, ["--ep", 2, "--tp", 2, "--batch-size", 2]),
    "mixtral, down": (lambda: transformers.MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2), "down", [], ["mlp.experts.down_proj"]),
    "qwen3_moe": (lambda: transformers.Qwen3MoeConfig(**SIZES, head_dim=32, moe_intermediate_size=48, num_experts=4, num_experts_per_tok=2,
                                                      norm_topk_prob=True), "k,gate,up", ["k_proj"], ["mlp.experts.gate_up_proj"]),
    "qwen3_moe, attention": (lambda: transformers.Qwen3MoeConfig(**SIZES, head_dim=32, moe_intermediate_size=48, num_experts=4,
                                                                 num_experts_per_tok=2), "q,o", ["q_proj", "o_proj"]),
    "gpt2": (lambda: transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=SEQ, vocab_size=256, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0),
             "q,k,v,o,up", ["attn.c_attn", "attn.c_proj", "c_fc"]),
    "gpt2, tensor ranks": (lambda: transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=SEQ, vocab_size=256, attn_pdrop=0, embd_pdrop=0,
                                                           resid_pdrop=0), "q,k,v,o,up", ["attn.c_attn", "attn.c_proj", "c_fc"], None, ["--tp", 2]),
}  # fmt: skip
RANK, ALPHA = 4, 6.0


def random_weights(model, seed):
    """Norms and biases too, and both matrices of adapters: one that is forgotten must show."""
    generator = torch.Generator().manual_seed(seed)
    gain = 0.0 if getattr(getattr(model, "config", None), "model_type", "").startswith("gemma") else 1.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = gain if ("norm" in name or "ln_" in name) and weight.dim() == 1 and "bias" not in name else 0.0
            weight.copy_(mean + 0.08 * torch.randn(weight.shape, generator=generator))


def base(folder, name="model"):
    return transformers.AutoModelForCausalLM.from_pretrained(folder / name, attn_implementation="eager").eval()


def with_adapter(folder, adapter, trainable=False):
    return peft.PeftModel.from_pretrained(base(folder), folder / adapter, is_trainable=trainable).eval()


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1).double(), targets.flatten())


def trained(model, inputs, targets):
    """AdamW as terrace is told to do it: decay, and clipping by the norm of the adapters' gradients."""
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=RATE, betas=(0.9, 0.95), eps=EPS, weight_decay=0.1)
    said = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        said.append(loss.item())
    return said


def largest(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def logits(model, inputs):
    with torch.no_grad():
        return model(inputs).logits


def adapters_of(model):
    return {name: p for name, p in model.named_parameters() if "lora_" in name}


def compare(program, folder, name, make, targets_here, modules, parameters=None, ranks=()):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = make()
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    random_weights(model, 7)
    model.tie_weights()
    model.save_pretrained(folder / "model")
    by_root = "rsLoRA" in name  # rsLoRA divides alpha by the square root of the rank
    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, use_rslora=by_root, target_modules=modules, target_parameters=parameters, task_type="CAUSAL_LM", fan_in_fan_out=name.startswith("gpt2"))
    adapted = peft.get_peft_model(base(folder), settings)
    random_weights(torch.nn.ParameterDict({n.replace(".", "_"): p for n, p in adapters_of(adapted).items()}), 11)
    adapted.save_pretrained(folder / "adapter")
    tokens = torch.randint(0, 256, (BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(5))
    (folder / "text").write_bytes(bytes(tokens.tolist()))
    inputs, targets = tokens[: BATCH * SEQ].view(BATCH, SEQ), tokens[1 : BATCH * SEQ + 1].view(BATCH, SEQ)

    common = ["--model", "model", "--data", "text", "--data-format", "bytes",
              "--seq-len", SEQ, "--batch-size", BATCH, "--eval-batches", 0, "--warmup", 0,
              "--lr-schedule", "constant", "--eps", EPS, "--device-memory", "unlimited", "--host-memory", "unlimited",
              "--lora-rank", RANK, "--lora-alpha", ALPHA * (RANK**0.5 if by_root else 1), "--lora-targets", targets_here, "--init-adapter", "adapter", *ranks]  # fmt: skip
    terrace(program, folder, "train", *common, "--steps", 1, "--lr", 1e-30, "--min-lr", 1e-30, "--out-dir", "still")
    terrace(program, folder, "ckpt", "export", "still", "still-adapter")
    terrace(program, folder, "train", *common, "--steps", 1, "--lr", LONG, "--min-lr", LONG, "--optimizer", "sgd", "--momentum", 0,
            "--weight-decay", 0, "--grad-clip", 0, "--out-dir", "long")  # fmt: skip
    terrace(program, folder, "ckpt", "export", "long", "long-adapter")
    terrace(program, folder, "train", *common, "--steps", STEPS, "--lr", RATE, "--out-dir", "run")
    terrace(program, folder, "ckpt", "export", "run", "run-adapter")
    terrace(program, folder, "ckpt", "export", "--merge", "run", "run-merged")

    theirs = with_adapter(folder, "adapter", trainable=True)
    loss = loss_of(theirs, inputs, targets)
    loss.backward()
    after = adapters_of(with_adapter(folder, "long-adapter"))
    gradients = max(largest((p - after[n]).detach() / LONG, p.grad) for n, p in adapters_of(theirs).items())
    same = largest(logits(with_adapter(folder, "still-adapter"), inputs), logits(theirs, inputs))
    said = trained(theirs, inputs, targets)
    ours = losses(folder, "run")
    wanted = logits(theirs, inputs)
    found = {
        "loss": abs(losses(folder, "still")[0] - loss.item()) / loss.item(),
        "gradients": gradients,
        "ten losses": max(abs(a - b) / b for a, b in zip(ours, said, strict=True)),
        "same adapter": same,
        "trained adapter": largest(logits(with_adapter(folder, "run-adapter"), inputs), wanted),
        "merged": largest(logits(base(folder, "run-merged"), inputs), wanted),
    }
    print(f"{name}: " + ", ".join(f"{what} {value:.1e}" for what, value in found.items()) + f" (loss {said[0]:.4f} to {said[-1]:.4f})", flush=True)
    return [f"{name}: {what} differs by {found[what]:.1e}, more than {limit}" for what, limit in LIMITS.items() if not found[what] <= limit]


def main():
    program, folder = pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute()
    only = sys.argv[3:]  # only these families
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, peft {peft.__version__}")
    wrong = [text for name, what in FAMILIES.items() if not only or name.split(",")[0] in only for text in compare(program, folder / "model", name, *what)]
    if wrong:
        sys.exit("\n".join(wrong))


main()
