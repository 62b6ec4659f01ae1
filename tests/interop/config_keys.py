"""What Hugging Face's library computes of each key of a config.json, for every family.

    config_keys.py TABLE          compares the table with what the installed version computes
    config_keys.py TABLE --write  writes it

A case is the config.json of a small model with some keys changed: absent, null, as usual, unusual, in the spellings of transformers 4 and 5 and in both at
once. Its facts are taken from the model that the library builds: sizes and biases from its tensors, windows from the masks that its layers are
called with, angles from its rotary embedding after a forward of 16 and of 64 positions. The table has the facts that differ from those of the
family's unchanged config.json, or null where the library refuses the case. tests/examples/lm/config_keys_test.cpp compares terrace with the table.
Exit code 77: a module is absent, or the table is of another version.
"""

import copy
import itertools
import json
import pathlib
import sys
import tempfile

SKIPPED = 77
try:
    import torch
    import transformers
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install torch transformers runs this test")
    sys.exit(SKIPPED)

LENGTHS, NEAR = (16, 64), 7  # positions of a forward; the window used for any window size
PAIRS = (1, 4, 7)  # three of a head's eight pairs, whose frequencies are compared
ABSENT = "absent"  # this case removes the key

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 32, "num_key_value_heads": 2,
         "max_position_embeddings": 48, "vocab_size": 256, "rms_norm_eps": 1e-4, "head_dim": 16, "pad_token_id": None}  # fmt: skip
PLAIN = {**SIZES, "hidden_act": "silu", "rope_theta": 20000.0, "tie_word_embeddings": False}
GEMMA = {**SIZES, "rope_theta": 20000.0}
BASES = {
    "gemma": {**GEMMA, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {**GEMMA, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9, "query_pre_attn_scalar": 24,
               "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    "gemma3_text": {**GEMMA, "num_hidden_layers": 7, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9, "query_pre_attn_scalar": 24,
                    "rope_local_base_freq": 300.0},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 256, "n_inner": 96, "layer_norm_epsilon": 1e-4,
             "activation_function": "gelu_new"},
    "llama": PLAIN,
    "mistral": {**PLAIN, "sliding_window": 9},
    "mixtral": {**PLAIN, "sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": PLAIN,
    "phi3": {**PLAIN, "num_attention_heads": 4, "sliding_window": 9, "original_max_position_embeddings": 48},
    "qwen2": PLAIN,
    "qwen3": PLAIN,
    "qwen3_moe": {**PLAIN, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "smollm3": {**PLAIN, "num_hidden_layers": 5},
}  # fmt: skip

TRUTHS = (ABSENT, None, True, False, 1, "true")
ACTIVATIONS = (ABSENT, "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
# The tested values of each key. A family is tested with the keys that its class knows and those that its files have.
KEYS = {
    "rms_norm_eps": (ABSENT, 1e-3),
    "num_key_value_heads": (ABSENT, None, 4, 1),
    "head_dim": (ABSENT, None, 32),
    "intermediate_size": (ABSENT, 160),
    "tie_word_embeddings": TRUTHS,
    "attention_bias": TRUTHS,
    "mlp_bias": TRUTHS,
    "hidden_act": ACTIVATIONS,
    "hidden_activation": ACTIVATIONS,
    "query_pre_attn_scalar": (ABSENT, 20),
    "attn_logit_softcapping": (ABSENT, None, 0.5),
    "final_logit_softcapping": (ABSENT, None, 0.75),
    "use_bidirectional_attention": (ABSENT, None, True, False),
    "sliding_window_pattern": (ABSENT, 2, 3),
    "no_rope_layers": (ABSENT, None, [0, 1, 1, 0, 1], [0, 1], [0, 1, 1, 0, 1, 1]),
    "no_rope_layer_interval": (ABSENT, 2, 3),
    "pretraining_tp": (ABSENT, 2),
    "num_local_experts": (ABSENT, 4, 5),
    "num_experts": (ABSENT, 4, 5),
    "num_experts_per_tok": (ABSENT, 1, 3),
    "norm_topk_prob": TRUTHS,
    "decoder_sparse_step": (ABSENT, 1, 2),
    "mlp_only_layers": (ABSENT, None, [], [0]),
    "moe_intermediate_size": (ABSENT, 80),
    "router_jitter_noise": (ABSENT, 0.0),
    "output_router_logits": (ABSENT, False),
    "n_inner": (ABSENT, None, 160),
    "layer_norm_epsilon": (ABSENT, 1e-3),
    "activation_function": ACTIVATIONS,
    "scale_attn_weights": (ABSENT, True, False),
    "scale_attn_by_inverse_layer_idx": (ABSENT, False, True),
    "reorder_and_upcast_attn": (ABSENT, False, True),
    "add_cross_attention": (ABSENT, False),
}
# Keys that a family's class does not know but its files may have.
FURTHER = {"gemma2": ["hidden_act"], "gemma3_text": ["hidden_act", "sliding_window_pattern"], "mistral": ["attention_bias"],
           "mixtral": ["attention_bias"], "phi3": ["attention_bias"], "qwen2": ["attention_bias"], "qwen3_moe": ["num_local_experts"]}  # fmt: skip
# Families whose classes have their own rules for angles, and one other family; the rest get a part of these cases.
ROTARY, PART = ("gemma3_text", "llama", "phi3"), 4


def window_cases(family, known):
    """Sizes of windows with what decides on the blocks that have them."""
    count = BASES[family].get("num_hidden_layers", 3)
    full, sliding = ["full_attention"], ["sliding_attention"]
    types = [ABSENT, None, full * count, sliding * count, (sliding + full * 2) * count, sliding * (count - 1), sliding * (count + 1)]
    types[4] = types[4][:count]
    for size in (ABSENT, None, 5):
        for listed in types:
            yield {"sliding_window": size, "layer_types": listed}
    if "use_sliding_window" not in known:
        return
    for use, size, first, listed in itertools.product((None, True, False, 1), (ABSENT, None, 5), (ABSENT, 0, 1, 28), (ABSENT, types[4])):
        yield {"use_sliding_window": use, "sliding_window": size, "max_window_layers": first, "layer_types": listed}


def scalings(pairs=8):
    """Changes of angles, in the words of one object."""
    lists = {"short_factor": [1 + i / 10 for i in range(pairs)], "long_factor": [2.0 + i for i in range(pairs)]}
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for more in ({}, {"rope_theta": 700.0}):
        yield {"rope_type": "default", **more}
        yield {"rope_type": "linear", "factor": 4.0, **more}
        yield {"type": "linear", "factor": 4.0, **more}
        yield {"rope_type": "linear", "type": "default", "factor": 4.0, **more}
    yield {"rope_type": "linear"}
    yield {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5}
    yield {"rope_type": None, "factor": 4.0}
    for inner in ({}, {"original_max_position_embeddings": 24}):
        yield {"rope_type": "dynamic", "factor": 2.0, **inner}
        yield {"rope_type": "llama3", **llama3, **inner}
        yield {"rope_type": "yarn", "factor": 4.0, **inner}
        yield {"type": "longrope", **lists, **inner}
        yield {"type": "longrope", **lists, "factor": 6.0, **inner}
        yield {"type": "su", **lists, **inner}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
    for more in ({"attention_factor": 1.5}, {"attention_factor": None}, {"factor": None}, {"mscale": 0.7}, {"mscale_all_dim": 0.7},
                 {"mscale": 0.7, "mscale_all_dim": 0.4}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.7, "mscale_all_dim": 0},
                 {"mscale": 0.7, "mscale_all_dim": 0.4, "attention_factor": 1.5}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"beta_fast": None},
                 {"truncate": False}, {"truncate": None}, {"truncate": True}):  # fmt: skip
        yield {**yarn, **more}
    yield {"rope_type": "yarn", "factor": 4.0, **lists}
    longrope = {"rope_type": "longrope", **lists, "original_max_position_embeddings": 24}
    yield {**longrope, "attention_factor": 1.5, "factor": 6.0}
    yield {**longrope, "factor": None, "attention_factor": None}
    yield {**longrope, "factor": 1.0}


def rotary_cases(family):
    for base, inner in itertools.product((ABSENT, 500.0), (None, {}, {"rope_theta": 700.0}, {"rope_type": "default", "rope_theta": 700.0})):
        yield {"rope_theta": base, "rope_parameters": inner}
        yield {"rope_theta": base, "rope_scaling": inner}
    for whole in scalings():
        yield {"rope_scaling": whole}
        yield {"rope_parameters": whole}
        if "original_max_position_embeddings" in whole:
            yield {"rope_scaling": whole, "original_max_position_embeddings": 12}
        else:
            yield {"rope_scaling": whole, "original_max_position_embeddings": ABSENT}
    linear, default = {"rope_type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 900.0}
    yield {"rope_scaling": linear, "rope_parameters": default}
    yield {"rope_scaling": {**linear, "rope_theta": 700.0}, "rope_parameters": default}
    yield {"rope_scaling": linear, "rope_parameters": default, "rope_theta": ABSENT}
    yield {"rope_scaling": {}, "rope_parameters": {**linear, "rope_theta": 900.0}}
    for part, inner in itertools.product((ABSENT, 1.0, 0.5), (ABSENT, 1.0, 0.75)):
        told = {"rope_type": "default"} if inner == ABSENT else {"rope_type": "default", "partial_rotary_factor": inner}
        yield {"partial_rotary_factor": part, "rope_parameters": told}
        yield {"partial_rotary_factor": part, "rope_scaling": told}
    if family == "phi3":
        half = next(s for s in scalings(4) if s.get("type") == "longrope")
        yield {"partial_rotary_factor": 0.5, "rope_scaling": half, "original_max_position_embeddings": 24}
    if family != "gemma3_text":
        return
    for base, local, inner in itertools.product((ABSENT, 500.0), (ABSENT, 77.0), (ABSENT, 99.0)):
        near = {"rope_type": "default"} if inner == ABSENT else {"rope_type": "default", "rope_theta": inner}
        for full in ({"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0}):
            told = {"rope_theta": base, "rope_local_base_freq": local, "rope_parameters": {"full_attention": full, "sliding_attention": near}}
            yield told
            yield {**told, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
            yield {**told, "rope_scaling": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0}}
        yield {"rope_theta": base, "rope_local_base_freq": local, "rope_parameters": {"sliding_attention": near}}
    for whole in scalings():
        yield {"rope_parameters": {"full_attention": whole, "sliding_attention": {"rope_type": "default"}}}
    yield {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}}


def cases():
    for family, base in BASES.items():
        known = set(transformers.CONFIG_MAPPING[family]().to_dict())
        for key, values in KEYS.items():
            if key in base or key in known or key in FURTHER.get(family, []):
                yield from ((family, {key: value}) for value in values)
        if family != "gpt2":
            yield from ((family, change) for change in window_cases(family, known))
            yield from ((family, change) for i, change in enumerate(rotary_cases(family)) if family in ROTARY or i % PART == 0)


def changed(base, change):
    config = {**copy.deepcopy(base), **change}
    return {key: value for key, value in config.items() if value != ABSENT}


CALLS = []


def spy(module, query, key, value, attention_mask, **told):
    seen = query.shape[2] if attention_mask is None else int((attention_mask[0, 0, -1] > -1).sum())
    CALLS.append({"seen": 0 if seen == query.shape[2] else seen, "causal": attention_mask is None or bool((attention_mask[0, 0, 0, 1:] < -1).all()),
                  "scale": told.get("scaling"), "cap": told.get("softcap") or 0})  # fmt: skip
    return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


ALL_ATTENTION_FUNCTIONS.register("spy", spy)
ALL_MASK_ATTENTION_FUNCTIONS.register("spy", eager_mask)


def rounded(number):
    return float(f"{number:.6g}")


def angles_of(rotary, kind):
    frequencies = getattr(rotary, f"{kind}_inv_freq" if kind else "inv_freq")
    length = getattr(rotary, f"{kind}_attention_scaling" if kind else "attention_scaling")
    return [len(frequencies), rounded(length), *(rounded(frequencies[i].item()) for i in PAIRS if i < len(frequencies))]


def facts_of(config_json, folder):
    (folder / "config.json").write_text(json.dumps(config_json))
    config = transformers.AutoConfig.from_pretrained(folder)
    window = getattr(config, "sliding_window", None)
    if window is not None:
        config.sliding_window = NEAR
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="spy").eval()
    is_gpt2 = config.model_type == "gpt2"
    body = model.transformer if is_gpt2 else model.model
    blocks = body.h if is_gpt2 else body.layers
    facts = {}
    with torch.no_grad():
        for length in LENGTHS:
            CALLS.clear()
            ids = torch.arange(length)[None]
            logits = model(ids).logits
            rotary = getattr(body, "rotary_emb", None)
            if rotary is not None:
                kinds = [""] if not hasattr(rotary, "layer_types") else rotary.layer_types
                for kind in kinds:
                    facts[f"{'window ' if kind == 'sliding_attention' else ''}angles {length}"] = angles_of(rotary, kind)
        called = list(CALLS)
        torch.nn.init.normal_(model.lm_head.weight, std=1e6)
        largest = model(ids).logits.abs().max().item()
    names = {name: tuple(p.shape) for name, p in blocks[0].named_parameters()}
    first = blocks[0].self_attn if not is_gpt2 else blocks[0].attn
    norm = next(m for n, m in blocks[0].named_modules() if "norm" in n or n.startswith("ln_"))
    mlp = blocks[0].mlp
    act = next(getattr(mlp, n) for n in ("act_fn", "activation_fn", "act") if hasattr(mlp, n)) if not hasattr(mlp, "experts") else mlp.experts.act_fn
    assert logits.isfinite().all()
    facts |= {
        "windows": [0 if call["seen"] == 0 else window for call in called],
        "causal": all(call["causal"] for call in called),
        "scale": rounded(called[0]["scale"]),
        "scales": len({call["scale"] for call in called}),
        "score cap": called[0]["cap"],
        "logit cap": rounded(largest) if largest < 1e4 else 0,
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "eps": norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps,
        "act": [rounded(act(torch.tensor([x])).item()) for x in (1.0, -0.5)],
        "head dim": first.head_dim,
        "kv heads": getattr(first, "num_key_value_heads", None) or (first.num_heads if is_gpt2 else config.num_key_value_heads),
        "biases": sorted({name.split(".")[-2] for name in names if name.endswith("bias") and "ln_" not in name}),
        "rotates": [int(bool(getattr(b.self_attn, "use_rope", True))) for b in blocks] if not is_gpt2 else [],
        "ffn": config.moe_intermediate_size if hasattr(config, "moe_intermediate_size") else
               next(s for n, s in names.items() if "down_proj" in n or "mlp.c_proj.weight" in n)[-2 if is_gpt2 else -1],
    }  # fmt: skip
    if hasattr(mlp, "experts"):
        gate = mlp.gate
        facts["experts"] = [mlp.experts.num_experts, gate.top_k, bool(getattr(gate, "norm_topk_prob", True))]
        facts["dense"] = [i for i, b in enumerate(blocks) if not hasattr(b.mlp, "experts")]
    return facts


def line(case):
    return json.dumps(case, separators=(",", ":"))


def made():
    found = {"transformers": transformers.__version__, "families": {}, "cases": []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for family, base in BASES.items():
            config = {"model_type": family, **base}
            found["families"][family] = {"config": config, "facts": facts_of(config, folder)}
        seen = set()
        for family, change in cases():
            base = found["families"][family]
            config = changed(base["config"], change)
            told = {key: value for key, value in change.items() if value == ABSENT or base["config"].get(key, ABSENT) != value}
            if not told or line([family, told]) in seen:
                continue
            seen.add(line([family, told]))
            try:
                facts = facts_of(config, folder)
                facts = {key: facts.get(key) for key in {**base["facts"], **facts} if base["facts"].get(key) != facts.get(key)}
            except Exception:  # of any kind: the library does not have this model
                facts = None
            found["cases"].append([family, told, facts])
    return found


def text_of(table):
    families = ",\n".join(f"{json.dumps(name)}:{line(family)}" for name, family in table["families"].items())
    lines = ",\n".join(line(case) for case in table["cases"])
    return f'{{"transformers":"{table["transformers"]}",\n"families":{{\n{families}}},\n"cases":[\n{lines}]}}\n'


def main():
    torch.set_num_threads(1)  # for such small models, more threads are slower
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    file = pathlib.Path(sys.argv[1])
    if sys.argv[2:] == ["--write"]:
        file.write_text(text_of(made()))
        return
    stored = json.loads(file.read_text())
    if stored["transformers"] != transformers.__version__:
        print(f"skipped: the table is of transformers {stored['transformers']}, and {transformers.__version__} is installed")
        sys.exit(SKIPPED)
    wrong = [f"stored {line(a)}\nnow    {line(b)}" for a, b in zip(stored["cases"], json.loads(text_of(made()))["cases"], strict=True) if a != b]
    print(f"{len(stored['cases'])} cases, {sum(case[2] is None for case in stored['cases'])} of which the library refuses")
    if wrong:
        sys.exit("\n".join(wrong))


main()
