#!/usr/bin/env python3
"""Compares the step time of plans with the measured one; the machine profile is measured just before.

    bench/plan_truth.py [--steps N] [--disk DIR] [--only SETTING]
"""

import argparse
import pathlib
import tempfile

import runs

LARGE = ["--layers", "12", "--hidden", "512", "--heads", "8"]
WHOLE = [*LARGE, "--batch-size", "8"]
PARTS = ["--batch-size", "2", "--grad-accumulation", "4", "--order", "vertical"]
SETTINGS = {
    "resident": [*WHOLE, "--device-memory", "unlimited", "--host-memory", "unlimited"],
    "weights on the host": [*WHOLE, "--device-memory", "160MiB", "--host-memory", "unlimited", "--recompute", "layer"],
    "states on the disk": [*WHOLE, "--device-memory", "160MiB", "--host-memory", "320MiB", "--recompute", "layer", "disk"],
    "all on the disk, vertical": [*LARGE, *PARTS, "--device-memory", "96MiB", "--host-memory", "96MiB", "disk"],
    # As in examples/quickstart.sh; the planner chooses where activations go.
    "the quickstart": ["--layers", "6", "--hidden", "384", "--heads", "6", *PARTS, "--device-memory", "32MiB", "--host-memory", "64MiB", "disk"],
}
MODEL = ["--model", "llama", "--seq-len", "256", "--eval-batches", "0"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=24)
    arguments.add_argument("--disk", default=".", help="a folder on the disk to use")
    arguments.add_argument("--only", choices=SETTINGS, help="one setting instead of all")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=options.disk) as folder:
        text = runs.corpus(folder)
        disk = pathlib.Path(folder) / "disk"
        disk.mkdir()
        for name, flags in SETTINGS.items():
            if options.only not in (None, name):
                continue
            runs.terrace("doctor", "--measure", "--nvme-path", disk)
            flags = [f for f in flags if f != "disk"] + (["--nvme-path", disk] if "disk" in flags else [])
            plan, steps = runs.train(folder, *MODEL, "--data", text, "--steps", options.steps, *flags)
            measured = runs.show(name, [s["step_time_s"] for s in steps[2:]], "s a step")
            print(f"{'':<44} {plan['step_time_s']:9.3f} s planned: {100 * (plan['step_time_s'] / measured - 1):+.1f} %")


if __name__ == "__main__":
    main()
