#!/usr/bin/env python3
"""Training speed of GPT-2 124M (batch 4, 64 tokens, two threads), beside the machine's matrix peak and PyTorch where it is
installed, alternately.

    bench/gpt2_speed.py [--rounds N] [--steps N] [--threads N]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import runs

MODEL = ["--data-format", "bytes", "--model", "gpt2", "--layers", "12", "--hidden", "768", "--heads", "12", "--vocab", "50257", "--seq-len", "64",
         "--batch-size", "4", "--eval-batches", "0", "--device-memory", "unlimited", "--host-memory", "unlimited"]
TOKENS = 4 * 64
# FLOPs in the matrix products of a step: 6 per token and weight (without positions, norms and biases), and those of attention.
STEP_FLOPS = TOKENS * 6 * (12 * 12 * 768 * 768 + 50257 * 768) + 12 * 6 * 2 * TOKENS * 64 * 768
PYTORCH = pathlib.Path(__file__).with_name("gpt2_pytorch.py")


def pytorch(dtype, threads, steps):
    """Tokens per second of each step, or nothing if PyTorch is not installed."""
    # PyTorch's allocator returns large blocks to the system at each step unless malloc is set to keep them.
    keep = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "1073741824"}
    command = [os.environ.get("PYTHON", sys.executable), PYTORCH, dtype, str(threads), str(steps)]
    done = subprocess.run(command, env={**os.environ, **keep}, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else []


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=12)
    arguments.add_argument("--threads", type=int, default=2)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=".") as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.abspath(folder)
        text = runs.corpus(folder)
        for dtype in ("fp32", "bf16"):
            ours, theirs, peaks = [], [], []
            for _ in range(options.rounds):
                _, steps = runs.train(folder, *MODEL, "--dtype", dtype, "--threads", options.threads, "--data", text,
                                      "--steps", options.steps)
                ours += [s["tokens_per_s"] for s in steps[2:]]
                runs.terrace("doctor", "--measure")
                profile = json.loads((pathlib.Path(folder) / "terrace/machine.json").read_text())
                peaks.append(profile[f"matmul_{dtype}_flop_s"])
                theirs += pytorch(dtype, options.threads, options.steps)
            speed = runs.show(f"{dtype}: terrace", ours, "tokens/s")
            peak = runs.show(f"{dtype}: matrix peak", peaks, "GFLOP/s", 1e-9)
            print(f"{dtype}: a step does {STEP_FLOPS * 1e-9:.0f} GFLOP; terrace runs at "
                  f"{100 * speed / TOKENS * STEP_FLOPS / (peak * 1e9):.1f} % of the matrix peak, updates included")
            if theirs:
                print(f"{dtype}: {speed / runs.show(f'{dtype}: PyTorch', theirs, 'tokens/s'):.2f} times PyTorch's speed")
            else:
                print(f"{dtype}: PyTorch is not installed, so there is nothing to compare with")


if __name__ == "__main__":
    main()
