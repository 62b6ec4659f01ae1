"""The rival in gpt2_speed.py: trains GPT-2 124M in PyTorch and prints one list of tokens per second.

    gpt2_pytorch.py DTYPE THREADS STEPS
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCH, SEQ, VOCAB, WIDTH, HEADS, LAYERS, POSITIONS = 4, 64, 50257, 768, 12, 12, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm_1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, SEQ, WIDTH)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(SEQ))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def main():
    dtype, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
    speeds = []
    for _ in range(steps):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = F.cross_entropy(model(tokens[:, :-1]).view(-1, VOCAB), tokens[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        speeds.append(BATCH * SEQ / (time.perf_counter() - begin))
    json.dump(speeds[2:], sys.stdout)


if __name__ == "__main__":
    main()
