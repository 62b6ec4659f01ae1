#!/usr/bin/env python3
"""Compares `terrace bench optimizer` with DeepSpeed's CPU Adam and PyTorch's AdamW, in turns: AdamW over the same number of parameters, on the
same number of threads, with three ways of storing them.

    bench/compare/adam_deepspeed.py [--params 64000000] [--rounds 7] [--threads 1,2] [--what fp32,copy,bf16]

fp32   weights, gradients and moments in fp32                          DeepSpeed; PyTorch's default and its fused loop
copy   the same, and a bf16 copy of the new weights                    DeepSpeed, then a cast
bf16   everything in bf16 (terrace rounds weights stochastically)      DeepSpeed with bf16 states

Needs a Python with torch and deepspeed (PYTHON=…): without one it says so and ends with 2. --without-deepspeed leaves DeepSpeed out.
"""

import argparse
import json
import os
import subprocess
import sys

import sides

RECIPES = {"fp32": ("fp32", "fp32"), "copy": ("bf16", "fp32"), "bf16": ("bf16", "all-bf16")}

# The program that runs under that Python. It prints a line of JSON with the parameters per second of each rival: medians of
# three passes after one that warms up.
THEIRS = r"""
import json, sys, time
import torch
params, threads, what, deepspeed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "yes"
torch.set_num_threads(threads)
kind = torch.bfloat16 if what == "bf16" else torch.float32

def weight():
    p = torch.nn.Parameter(torch.full((params,), 0.5, dtype=kind))
    p.grad = torch.full((params,), 0.01, dtype=kind)
    return p

def speed(step):
    passes = []
    for i in range(4):
        begin = time.perf_counter()
        step()
        if i > 0:
            passes.append(params / (time.perf_counter() - begin))
    return sorted(passes)[1]

out = {}
settings = dict(lr=1e-9, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
if deepspeed:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    p = weight()
    own = DeepSpeedCPUAdam([p], adamw_mode=True, fp32_optimizer_states=what != "bf16", **settings)
    if what == "copy":
        copy = torch.zeros(params, dtype=torch.bfloat16)
        def step():
            own.step()
            copy.copy_(p.data)
        out["DeepSpeed, then a cast"] = speed(step)
    else:
        out["DeepSpeed"] = speed(own.step)
    del own, p
if what == "fp32":
    for name, fused in (("PyTorch", None), ("PyTorch, fused", True)):
        p = weight()
        out[name] = speed(torch.optim.AdamW([p], fused=fused, **settings).step)
        del p
print(json.dumps(out))
"""
PYTHON = os.environ.get("PYTHON", sys.executable)


def our_turn(params, threads, what):
    dtype, recipe = RECIPES[what]
    out = sides.run([sides.TERRACE, "bench", "optimizer", "--optimizer", "adamw", "--dtype", dtype, "--recipe", recipe, "--params", params,
                     "--threads", threads, "--runs", 3, "--json"])
    result = json.loads(out)["results"][0]
    return result["params_per_s"], result["fraction_of_stream"]


def their_turn(params, threads, what, deepspeed):
    # Some libraries read their number of threads from the environment, before the program can set it.
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    done = subprocess.run([PYTHON, "-c", THEIRS, str(params), str(threads), what, "yes" if deepspeed else "no"], capture_output=True,
                          text=True, check=False, env=env)
    if done.returncode != 0:
        sys.exit(f"{PYTHON}, {what} on {threads} threads\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def show(name, values, note=""):
    speed, low, high = sides.middle([1e-6 * v for v in values])
    print(f"  {name:<28} {speed:8.1f} Mparam/s  (middle half {low:.1f} .. {high:.1f}, n = {len(values)}){note}", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--params", type=int, default=64_000_000)
    arguments.add_argument("--rounds", type=int, default=7, help="turns of each side (7)")
    arguments.add_argument("--threads", default="1,2")
    arguments.add_argument("--what", default="fp32,copy,bf16")
    arguments.add_argument("--without-deepspeed", action="store_true")
    options = arguments.parse_args()
    unknown = set(options.what.split(",")) - set(RECIPES)
    if unknown:
        sys.exit(f"--what {','.join(sorted(unknown))}: there are {', '.join(RECIPES)}")
    deepspeed = not options.without_deepspeed
    needed = "import torch" + (", deepspeed" if deepspeed else "")
    probe = subprocess.run([PYTHON, "-c", needed], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        print(f"{PYTHON} cannot {needed}: there is nothing to compare with\n  {probe.stderr.strip().splitlines()[-1]}; give a Python "
              "that can: PYTHON=…", file=sys.stderr)
        return 2
    for threads in map(int, options.threads.split(",")):
        for what in options.what.split(","):
            ours, fractions, theirs = [], [], {}
            for _ in range(options.rounds):
                speed, fraction = our_turn(options.params, threads, what)
                ours.append(speed)
                fractions.append(fraction)
                for name, value in their_turn(options.params, threads, what, deepspeed).items():
                    theirs.setdefault(name, []).append(value)
            print(f"AdamW, {what}, {options.params} parameters, {threads} thread{'s' if threads > 1 else ''}")
            show("terrace", ours, f"  {sides.middle(fractions)[0]:.3f} of the stream")
            for name, values in theirs.items():
                show(name, values)
                ratio, low, high = sides.middle([a / b for a, b in zip(ours, values)])
                print(f"  {'terrace ÷ ' + name:<28} {ratio:8.3f} times  (middle half {low:.3f} .. {high:.3f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
