"""Shared by the rivals: the Llama that terrace trains, written with PyTorch's own layers, its batch, and the training loop.

Parameters have Hugging Face's names, so that one safetensors file starts every side. The setting is a JSON file that side_by_side.py
writes; the loop appends one line of JSON a step to setting["steps_file"], as terrace does in metrics.jsonl.
"""

import json
import pathlib
import time

import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NORM_EPS, ROPE_THETA = 1e-5, 10000.0


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        def rotated(t):
            a, b = t.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.self_attn, self.mlp = Attention(hidden, heads), Mlp(hidden, ffn)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden, NORM_EPS), nn.RMSNorm(hidden, NORM_EPS)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, layers, hidden, heads, ffn, vocab):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(vocab, hidden), nn.RMSNorm(hidden, NORM_EPS)
        self.layers = nn.ModuleList(Block(hidden, heads, ffn) for _ in range(layers))


class Llama(nn.Module):
    """The output head is the embedding table, as in terrace without --untied."""

    def __init__(self, setting):
        super().__init__()
        hidden, heads = setting["hidden"], setting["heads"]
        self.recompute = setting["recompute"]
        self.model = Body(setting["layers"], hidden, heads, setting["ffn"], setting["vocab"])
        self.lm_head = nn.Linear(hidden, setting["vocab"], bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        half = hidden // heads // 2
        angles = torch.outer(torch.arange(setting["seq"]).double(), ROPE_THETA ** (-torch.arange(half).double() / half))
        # Plain attributes, not buffers: nothing converts them to bf16, in which angles would be too coarse.
        self.cos, self.sin = angles.cos().float(), angles.sin().float()

    def forward(self, tokens, targets):
        x = self.model.embed_tokens(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.model.layers:
            # Reentrant: ZeRO-3's hooks give wrong gradients under the other kind.
            x = checkpoint(block, x, cos, sin, use_reentrant=True) if self.recompute else block(x, cos, sin)
        return F.cross_entropy(self.lm_head(self.model.norm(x)).float().flatten(0, 1), targets.flatten())


def loaded(setting):
    """The model with the weights that every side starts from."""
    model = Llama(setting)
    own = dict(model.named_parameters())
    with safe_open(setting["weights"], "pt") as file, torch.no_grad():
        names = set(file.keys())
        assert names == set(own), f"the weights differ: {sorted(names ^ set(own))}"
        for name in names:
            own[name].copy_(file.get_tensor(name))
    return model


def batch(setting):
    """Tokens and targets of the one batch that every step sees: the first batch · seq + 1 bytes of the text."""
    rows, seq = setting["batch"], setting["seq"]
    text = torch.frombuffer(bytearray(pathlib.Path(setting["text"]).read_bytes()), dtype=torch.uint8)[: rows * seq + 1].long()
    return text[:-1].view(rows, seq), text[1:].view(rows, seq)


def groups(model, decay):
    """Weight decay for matrices and the embedding, and none for norms, as in terrace."""
    parameters = list(model.parameters())
    return [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]


def train(setting, step):
    """Calls step(tokens, targets), which returns the loss, and writes a line after each call."""
    tokens, targets = batch(setting)
    with open(setting["steps_file"], "a", encoding="utf-8") as lines:
        for number in range(1, setting["steps"] + 1):
            begin = time.perf_counter()
            loss = float(step(tokens, targets))
            print(json.dumps({"step": number, "loss": loss, "step_time_s": time.perf_counter() - begin}), file=lines, flush=True)
