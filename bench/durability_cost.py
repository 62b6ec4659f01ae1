#!/usr/bin/env python3
"""Measures what durability costs: trains one model with everything on the disk under each --durability, alternately. The time of a step is
that of the whole program, commits and start included, divided by the steps.

    bench/durability_cost.py [--rounds N] [--steps N] [--disk DIR]
"""

import argparse
import pathlib
import tempfile
import time

import runs

MODEL = ["--model", "llama", "--layers", "12", "--hidden", "512", "--heads", "8", "--seq-len", "256", "--batch-size", "8", "--recompute",
         "layer", "--eval-batches", "0", "--assumed-costs", "--device-memory", "160MiB", "--host-memory", "320MiB"]
SETTINGS = {
    "off": ["--durability", "off"],
    "commit, at the end": ["--durability", "commit"],
    "commit, every 5 steps": ["--durability", "commit", "--ckpt-interval", "5"],
    "step": ["--durability", "step"],
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=10)
    arguments.add_argument("--disk", default=".", help="a folder on the disk to use")
    options = arguments.parse_args()
    seconds = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=options.disk) as folder:
        text = runs.corpus(folder)
        disk = pathlib.Path(folder) / "disk"
        disk.mkdir()
        for _ in range(options.rounds):
            for name, flags in SETTINGS.items():
                begin = time.perf_counter()
                runs.train(folder, *MODEL, "--data", text, "--steps", options.steps, "--nvme-path", disk, *flags)
                seconds[name].append((time.perf_counter() - begin) / options.steps)
    first = None
    for name, values in seconds.items():
        median = runs.show(f"--durability {name}", values, "s a step")
        first = first or median
        print(f"{'':<44} {median / first:9.3f} of off")


if __name__ == "__main__":
    main()
