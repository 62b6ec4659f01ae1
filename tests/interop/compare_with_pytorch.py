"""Trains the same models on the same text with terrace and with PyTorch and compares what comes out of both.

    compare_with_pytorch.py TERRACE FOLDER

TERRACE is the program, FOLDER a scratch folder. Weights go over as safetensors files with Hugging Face's tensor names: the
first ones by --init-from, the last ones by --save. Prints the largest deviations. Exit code 77: PyTorch or safetensors is absent.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install torch safetensors transformers runs this test")
    sys.exit(SKIPPED)

import reference_models as reference

SEED = 20240229
MICRO_BATCHES, BATCH = 3, 2
SEQUENCES = MICRO_BATCHES * BATCH  # the whole training text: every step sees the same sequences, in some order
# Largest allowed deviations. In fp64 they show that the formulas are the same; in fp32 each side rounds in its own way. The
# library computes Llama's norms and rotary angles in fp32 with any dtype.
LIMITS = {
    "fp32": {"loss": 4e-6, "norm": 2e-6, "gradient": 1e-6, "weight": 2e-6, "library, first": 4e-6, "library, last": 4e-6},
    "fp64": {"loss": 1e-13, "norm": 1e-13, "gradient": 1e-10, "weight": 1e-13, "library, first": 1e-6, "library, last": 1e-6},
}
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


def corpus(sizes):
    """The bytes of six training sequences: without evaluations nothing is held out."""
    generator = torch.Generator().manual_seed(SEED)
    count = SEQUENCES * sizes.seq + 1
    tokens = torch.randint(0, 256, (count,), generator=generator)
    inputs = tokens[: SEQUENCES * sizes.seq].view(SEQUENCES, sizes.seq)
    targets = tokens[1 : SEQUENCES * sizes.seq + 1].view(SEQUENCES, sizes.seq)
    return bytes(tokens.tolist()), inputs, targets


def terrace(program, folder, sizes, dtype, weights, text, options):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "text").write_bytes(text)
    save_file(weights, folder / "first.safetensors")
    flags = {
        "model": sizes.family, "layers": sizes.layers, "hidden": sizes.hidden, "heads": sizes.heads,
        "kv-heads": sizes.kv_heads, "ffn": sizes.ffn, "seq-len": sizes.seq, "vocab": sizes.vocab, "dtype": dtype,
        "data": folder / "text", "batch-size": BATCH, "grad-accumulation": MICRO_BATCHES, "lr-schedule": "constant",
        "warmup": 0, "eval-batches": 0, "out-dir": folder / "run", "init-from": folder / "first.safetensors",
        "save": folder / "last.safetensors", "device-memory": "unlimited", "host-memory": "unlimited", "norm-eps": sizes.norm_eps,
        **({"rope-base": sizes.rope_theta} if sizes.family == "llama" else {}), **options,
    }  # fmt: skip
    command = [program, "train", *(word for key, value in flags.items() for word in (f"--{key}", str(value)))]
    command += ["--untied"] if sizes.untied else []
    command += ["--skips", "u"] if sizes.skips else []
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": str(folder)})
    if done.returncode != 0:
        sys.exit(f"terrace ended with {done.returncode}:\n{done.stderr}")
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return steps, load_file(folder / "last.safetensors")


def gradients(sizes, weights, inputs, targets):
    w = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    reference.loss(sizes, w, inputs, targets).backward()
    return {name: tensor.grad for name, tensor in w.items()}


def trained(sizes, weights, inputs, targets, steps, rate, decay, eps, clip):
    """AdamW as terrace is told to do it: decay for matrices and embeddings, not for gains and biases."""
    w = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    groups = [
        {"params": [t for t in w.values() if t.dim() >= 2], "weight_decay": decay},
        {"params": [t for t in w.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=eps)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = reference.loss(sizes, w, inputs, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), clip).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, {name: tensor.detach() for name, tensor in w.items()}


def largest(a, b):
    assert a.keys() == b.keys(), f"the tensors differ: {sorted(a.keys() ^ b.keys())}"
    for name in a:
        assert a[name].shape == b[name].shape and a[name].dtype == b[name].dtype, name
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def compare(program, folder, family, untied, dtype, skips):
    sizes = reference.Sizes(family, untied, skips)
    text, inputs, targets = corpus(sizes)
    weights = reference.random_weights(sizes, SEED, DTYPES[dtype])
    deviations = {}

    # With lr = eps, both enormous, one step w − lr · g / (|g| + eps) is w − g: the weights reveal the gradient.
    enormous = 1e9
    steps, last = terrace(program, folder, sizes, dtype, weights, text,
                          {"steps": 1, "lr": enormous, "min-lr": enormous, "eps": enormous, "beta1": 0, "weight-decay": 0,
                           "grad-clip": 0})  # fmt: skip
    expected = gradients(sizes, weights, inputs, targets)
    deviations["gradient"] = largest({name: weights[name] - last[name] for name in last}, expected)
    assert max(g.abs().max().item() for g in expected.values()) > 1e-2, "gradients large enough to compare"

    count, rate, decay, clip = 5, 1e-3, 0.1, 0.5
    # If a gradient is 0 except for rounding (a key's bias), AdamW may make a step of any size; with this eps it does not.
    eps = 1e-5
    steps, last = terrace(program, folder, sizes, dtype, weights, text,
                          {"steps": count, "lr": rate, "min-lr": rate, "eps": eps, "weight-decay": decay,
                           "grad-clip": clip})  # fmt: skip
    losses, norms, expected = trained(sizes, weights, inputs, targets, count, rate, decay, eps, clip)
    deviations["loss"] = max(abs(step["loss"] - loss) for step, loss in zip(steps, losses, strict=True))
    deviations["norm"] = max(abs(step["grad_norm"] - norm) for step, norm in zip(steps, norms, strict=True))
    deviations["weight"] = largest(last, expected)
    assert losses[-1] < losses[0], "the model learned"

    for name, w in () if skips else (("first", weights), ("last", last)):
        by_library = reference.hugging_face_loss(sizes, w, inputs, targets)
        if by_library is None:
            print("  transformers is not installed: its models are not compared")
            break
        own = reference.loss(sizes, w, inputs, targets).item()
        deviations[f"library, {name}"] = abs(by_library - (steps[0]["loss"] if name == "first" else own))

    shown = "  ".join(f"{what} {value:.2e}" for what, value in deviations.items())
    print(f"{family:<6}{dtype:<5}{'untied' if untied else 'tied':<7}{'skips  ' if skips else ''}{shown}", flush=True)
    limits = LIMITS[dtype]
    return [f"{family} {dtype} untied={untied} skips={skips}: {what} deviates by {value:.3e}, at most {limits[what]:.0e}"
            for what, value in deviations.items() if not value <= limits[what]]  # fmt: skip


def main():
    program, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    print(f"PyTorch {torch.__version__}, seed {SEED}; largest absolute deviations")
    failures = []
    for skips, family, untied, dtype in itertools.product((False, True), ("gpt2", "llama"), (False, True), DTYPES):
        failures += compare(program, folder, family, untied, dtype, skips)
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit("\n".join(failures) or 0)


main()
