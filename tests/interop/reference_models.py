"""GPT-2 and Llama in plain PyTorch operations, over a dictionary of tensors with Hugging Face's names.

With skips they are U-shaped: what comes out of block i, each column by a learned weight, is added to what goes into block
n - 1 - i of n, unless that one follows it. Nobody else has these: the weights' names are terrace's.
"""

import math

import torch
import torch.nn.functional as F


class Sizes:
    hidden, heads, vocab, seq = 64, 4, 256, 32
    norm_eps, rope_theta = 1e-5, 10000.0

    def __init__(self, family, untied, skips=False):
        self.family, self.untied, self.skips = family, untied, skips
        self.layers = 6 if skips else 3
        self.kv_heads = 2 if family == "llama" else self.heads
        self.ffn = 192 if family == "llama" else 4 * self.hidden

    def skips_from(self, block):
        """The block whose result is added before this one; None where none is."""
        start = self.layers - 1 - block
        return start if self.skips and start + 1 < block else None


def random_weights(sizes, seed, dtype):
    """Every tensor random, gains and biases too, so that none of them can be forgotten unseen."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, mean=0.0, std=0.08):
        return mean + std * torch.randn(*shape, generator=generator, dtype=torch.float64)

    c, f = sizes.hidden, sizes.ffn
    kv = c // sizes.heads * sizes.kv_heads
    w = {}
    if sizes.family == "gpt2":
        w["transformer.wte.weight"] = normal(sizes.vocab, c)
        w["transformer.wpe.weight"] = normal(sizes.seq, c)
        for i in range(sizes.layers):
            block = f"transformer.h.{i}."
            for name, inputs, outputs in (
                ("attn.c_attn", c, 3 * c),
                ("attn.c_proj", c, c),
                ("mlp.c_fc", c, f),
                ("mlp.c_proj", f, c),
            ):
                w[block + name + ".weight"] = normal(inputs, outputs)
                w[block + name + ".bias"] = normal(outputs)
            for name in ("ln_1", "ln_2"):
                w[block + name + ".weight"] = normal(c, mean=1.0)
                w[block + name + ".bias"] = normal(c)
            if sizes.skips_from(i) is not None:
                w[block + "skip.weight"] = normal(c, mean=1.0)
        w["transformer.ln_f.weight"] = normal(c, mean=1.0)
        w["transformer.ln_f.bias"] = normal(c)
    else:
        w["model.embed_tokens.weight"] = normal(sizes.vocab, c)
        for i in range(sizes.layers):
            block = f"model.layers.{i}."
            for name, inputs, outputs in (
                ("self_attn.q_proj", c, c),
                ("self_attn.k_proj", c, kv),
                ("self_attn.v_proj", c, kv),
                ("self_attn.o_proj", c, c),
                ("mlp.gate_proj", c, f),
                ("mlp.up_proj", c, f),
                ("mlp.down_proj", f, c),
            ):
                w[block + name + ".weight"] = normal(outputs, inputs)
            for name in ("input_layernorm", "post_attention_layernorm"):
                w[block + name + ".weight"] = normal(c, mean=1.0)
            if sizes.skips_from(i) is not None:
                w[block + "skip.weight"] = normal(c, mean=1.0)
        w["model.norm.weight"] = normal(c, mean=1.0)
    if sizes.untied:
        w["lm_head.weight"] = normal(sizes.vocab, c)
    return {name: tensor.to(dtype).contiguous() for name, tensor in w.items()}


def attention(q, k, v):
    """q [B, H, S, D], k and v [B, G, S, D]; causal, every H / G heads share one key and value."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~causal, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def rotate(x, theta):
    half = x.shape[-1] // 2
    rate = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def with_skip(sizes, w, x, results, i, block):
    start = sizes.skips_from(i)
    return x if start is None else x + w[block + "skip.weight"] * results[start]


def logits(sizes, w, tokens):
    results = []  # results of the blocks
    h, g, eps = sizes.heads, sizes.kv_heads, sizes.norm_eps
    if sizes.family == "gpt2":
        linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
        norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)
        x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
        for i in range(sizes.layers):
            block = f"transformer.h.{i}."
            x = with_skip(sizes, w, x, results, i, block)
            q, k, v = (heads(t, h) for t in linear(norm(x, block + "ln_1"), block + "attn.c_attn").chunk(3, -1))
            x = x + linear(attention(q, k, v), block + "attn.c_proj")
            up = linear(norm(x, block + "ln_2"), block + "mlp.c_fc")
            x = x + linear(F.gelu(up, approximate="tanh"), block + "mlp.c_proj")
            results.append(x)
        x, table = norm(x, "transformer.ln_f"), w["transformer.wte.weight"]
    else:
        linear = lambda x, name: x @ w[name + ".weight"].T
        norm = lambda x, name: x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w[name + ".weight"]
        x = w["model.embed_tokens.weight"][tokens]
        for i in range(sizes.layers):
            block = f"model.layers.{i}."
            x = with_skip(sizes, w, x, results, i, block)
            y = norm(x, block + "input_layernorm")
            q, k, v = (heads(linear(y, f"{block}self_attn.{p}_proj"), n) for p, n in (("q", h), ("k", g), ("v", g)))
            q, k = rotate(q, sizes.rope_theta), rotate(k, sizes.rope_theta)
            x = x + linear(attention(q, k, v), block + "self_attn.o_proj")
            y = norm(x, block + "post_attention_layernorm")
            gate, up = linear(y, block + "mlp.gate_proj"), linear(y, block + "mlp.up_proj")
            x = x + linear(F.silu(gate) * up, block + "mlp.down_proj")
            results.append(x)
        x, table = norm(x, "model.norm"), w["model.embed_tokens.weight"]
    return x @ (w["lm_head.weight"] if sizes.untied else table).T


def loss(sizes, w, tokens, targets):
    return F.cross_entropy(logits(sizes, w, tokens).flatten(0, 1), targets.flatten())


def hugging_face_loss(sizes, w, tokens, targets):
    """The same through the transformers library, which takes the tensors by name; None where it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    shared = dict(vocab_size=sizes.vocab, tie_word_embeddings=not sizes.untied, attn_implementation="eager",
                  bos_token_id=None, eos_token_id=None)
    if sizes.family == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_positions=sizes.seq, n_embd=sizes.hidden, n_layer=sizes.layers, n_head=sizes.heads,
                                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **shared))
    else:
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(hidden_size=sizes.hidden, intermediate_size=sizes.ffn, num_hidden_layers=sizes.layers,
                                     num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
                                     rms_norm_eps=sizes.norm_eps, max_position_embeddings=sizes.seq, **shared))
    model = model.to(next(iter(w.values())).dtype).eval()
    missing, unexpected = model.load_state_dict(w, strict=False)
    missing = [name for name in missing if sizes.untied or name != "lm_head.weight"]
    assert not missing and not unexpected, f"names differ: missing {missing}, unexpected {unexpected}"
    with torch.no_grad():
        return F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten()).item()
