"""The rivals: the same Llama, recipe, vocabulary and tokens in PyTorch. Prints one JSON object.

    llama_pytorch.py WAY DEVICE STEPS BATCH ACCUMULATION LAYERS HIDDEN HEADS KV_HEADS FFN VOCAB SEQ TIED [FOLDER]

WAY: compiled (every block by torch.compile, resident, fused AdamW on bf16 weights and states), fsdp-offload (FSDP2 with
CPUOffloadPolicy), zero-offload or zero-infinity (DeepSpeed; FOLDER is on the disk). Ends with 77 where a library is missing.
"""

import json
import os
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)


class Block(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, hidden // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.width, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split([self.heads * self.width] + 2 * [self.kv_heads * self.width], dim=2)
        q, k, v = (t.view(batch, seq, -1, self.width).transpose(1, 2) for t in (q, k, v))

        def turn(t):
            a, b = t.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, hidden))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers, hidden, heads, kv_heads, ffn, vocab, seq, tied, recompute):
        super().__init__()
        self.recompute = recompute
        self.embed, self.norm = nn.Embedding(vocab, hidden), nn.RMSNorm(hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.head = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        half = hidden // heads // 2
        angles = torch.outer(torch.arange(seq), 500000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False) if self.recompute else block(x, self.cos, self.sin)
        # One sequence at a time, so that the logits of all of them never exist at once.
        x, loss = self.norm(x), 0
        for row, target in zip(x, targets):
            loss = loss + checkpoint(lambda r, t: F.cross_entropy(self.head(r).float(), t, reduction="sum"), row, target,
                                     use_reentrant=False)
        return loss / targets.numel()


def alone():
    """Makes a process group of one, which FSDP2 and DeepSpeed need."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)


def prepared(way, model, device, batch, accumulation, folder):
    """Returns two functions: the forward and backward of one micro-batch, and the update."""
    if way.startswith("zero"):
        try:
            import deepspeed
        except ImportError:
            print("DeepSpeed is not installed")
            sys.exit(77)
        alone()
        place = {"device": "cpu", "pin_memory": True} if way == "zero-offload" else {"device": "nvme", "nvme_path": folder}
        config = {"train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": accumulation, "bf16": {"enabled": True},
                  "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                  "zero_optimization": {"stage": 3, "offload_optimizer": place, "offload_param": place if way == "zero-infinity" else None,
                                        "overlap_comm": True, "contiguous_gradients": True}}
        if way == "zero-offload":
            config["zero_optimization"].pop("offload_param")
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

        def micro_batch(tokens, targets):
            loss = engine(tokens, targets)
            engine.backward(loss)
            engine.step()  # the last one also updates
            return loss

        return micro_batch, lambda: None
    if way == "fsdp-offload":
        try:
            from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        except ImportError:
            print("this PyTorch has no FSDP2")
            sys.exit(77)
        alone()
        torch.distributed.init_process_group("cuda:nccl,cpu:gloo" if device.startswith("cuda") else "gloo")
        how = {"offload_policy": CPUOffloadPolicy(), "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
        for block in model.blocks:
            fully_shard(block, **how)
        fully_shard(model, **how)
    else:
        model.to(device)
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def micro_batch(tokens, targets):
        loss = model(tokens, targets) / accumulation
        loss.backward()
        return loss

    def update():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return micro_batch, update


def main():
    way, device = sys.argv[1:3]
    steps, batch, accumulation, layers, hidden, heads, kv_heads, ffn, vocab, seq, tied = map(int, sys.argv[3:14])
    folder = sys.argv[14] if len(sys.argv) > 14 else None
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    dtype = torch.float32 if way == "fsdp-offload" else torch.bfloat16  # FSDP2 keeps fp32 masters, DeepSpeed makes its own
    with torch.device("cpu" if way != "compiled" else device):
        torch.set_default_dtype(dtype)
        model = Llama(layers, hidden, heads, kv_heads, ffn, vocab, seq, bool(tied), recompute=way != "compiled")
    torch.set_default_dtype(torch.float32)
    micro_batch, update = prepared(way, model, device, batch, accumulation, folder)
    times, losses = [], []
    data = torch.randint(0, vocab, (accumulation, batch, seq + 1), device=device)
    for _ in range(steps):
        begin = time.perf_counter()
        loss = sum(float(micro_batch(d[:, :-1], d[:, 1:].contiguous())) if not cuda else micro_batch(d[:, :-1], d[:, 1:].contiguous()).detach()
                   for d in data)
        update()
        losses.append(float(loss))
        times.append(time.perf_counter() - begin)
    timed = sorted(times[2:] or times)
    seconds = timed[len(timed) // 2]
    print(json.dumps({"way": way, "torch": torch.__version__, "step_s": seconds, "tokens_s": batch * accumulation * seq / seconds,
                      "losses": losses, "peak_bytes": torch.cuda.max_memory_allocated() if cuda else 0}))


if __name__ == "__main__":
    main()
