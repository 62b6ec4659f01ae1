#!/usr/bin/env python3
"""Measures what offloading costs: trains GPT-2 124M at 2,048 tokens a step with a device budget of a quarter of the training state
and the optimizer state on the disk, alternately with the same run with everything in memory.

    bench/offload_cost.py [--rounds N] [--steps N] [--disk DIR] [--dtype fp32|bf16]
"""

import argparse
import pathlib
import statistics
import tempfile

import runs

MODEL = ["--data-format", "bytes", "--model", "gpt2", "--layers", "12", "--hidden", "768", "--heads", "12", "--vocab", "50257", "--seq-len", "256",
         "--batch-size", "8", "--recompute", "layer", "--eval-batches", "0"]
DEVICE, HOST = 512, 1000  # MiB, of 2,045 of state: what is left for the disk is the moments


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=5)
    arguments.add_argument("--disk", default=".", help="a folder on the disk to use")
    arguments.add_argument("--dtype", default="fp32")
    options = arguments.parse_args()
    times = {"resident": [], "offloaded": []}
    stall = []
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=options.disk) as folder:
        text = runs.corpus(folder)
        disk = pathlib.Path(folder) / "disk"
        disk.mkdir()
        where = {
            "resident": ["--device-memory", "unlimited", "--host-memory", "unlimited"],
            "offloaded": ["--device-memory", f"{DEVICE}MiB", "--host-memory", f"{HOST}MiB", "--nvme-path", disk],
        }
        for _ in range(options.rounds):
            for name, flags in where.items():
                _, steps = runs.train(folder, *MODEL, "--dtype", options.dtype, "--data", text, "--steps", options.steps, *flags)
                times[name] += [s["step_time_s"] for s in steps[2:]]
                if name == "offloaded":
                    stall += [s["offload"]["stall_s"] / s["step_time_s"] for s in steps[2:]]
                    moved = steps[-1]["offload"]
    for name, seconds in times.items():
        runs.show(name, seconds, "s a step")
    runs.show("stalled", stall, "% of a step", 100)
    print("an offloaded step reads {read_bytes} and writes {write_bytes} bytes of disk, uploads {h2d_bytes}, downloads "
          "{d2h_bytes}".format(**moved))
    print(f"offloaded runs at {statistics.median(times['resident']) / statistics.median(times['offloaded']):.3f} of the resident speed")


if __name__ == "__main__":
    main()
