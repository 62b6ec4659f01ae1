#!/usr/bin/env python3
"""Measures what commits during training cost: how long the run waits for a commit, and how much longer the step beside it takes than other
steps, spread over the steps between two commits. One model with its state in memory, and with everything on the disk.

    bench/commit_cost.py [--rounds N] [--steps N] [--every N] [--disk DIR]
"""

import argparse
import pathlib
import statistics
import tempfile

import runs

MODEL = ["--model", "llama", "--layers", "6", "--hidden", "384", "--heads", "6", "--seq-len", "256", "--batch-size", "4",
         "--eval-batches", "0"]
PLACES = {
    "in memory": [],
    "on the disk": ["--device-memory", "48MiB", "--host-memory", "48MiB"],
}


def costs(steps):
    """The seconds that each commit adds, and the median time of a step without one. A step's commit_s is the wait for a commit before it."""
    plain = statistics.median(s["step_time_s"] for s in steps[2:] if "commit_s" not in s)
    return [s["commit_s"] + s["step_time_s"] - plain for s in steps if "commit_s" in s], plain


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=61)
    arguments.add_argument("--every", type=int, default=10)
    arguments.add_argument("--disk", default=".", help="a folder on the disk to use")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=options.disk) as folder:
        text = runs.corpus(folder)
        disk = pathlib.Path(folder) / "disk"
        disk.mkdir()
        for place, budgets in PLACES.items():
            added, plain, waits = [], [], []
            for _ in range(options.rounds):
                plan, steps = runs.train(folder, *MODEL, "--data", text, "--steps", options.steps, "--nvme-path", disk, "--ckpt-interval",
                                         options.every, *budgets)
                of_run, step = costs(steps)
                added += of_run
                plain.append(step)
                waits += [s["commit_s"] for s in steps if "commit_s" in s]
            step = runs.show(f"{place}: a step without a commit", plain, "s")
            runs.show(f"{place}: waited for a commit", waits, "s")
            commit = runs.show(f"{place}: a commit adds", added, "s")
            for every in (options.every, 50):
                print(f"{'':<44} {100 * commit / (every * step):9.2f} % of the run every {every} steps")
            print(f"{'':<44} planned: {plan['commit']['bytes']['write'] >> 20} MiB in {plan['commit']['seconds']:.3f} s, added "
                  f"{plan['commit'].get('added_s', plan['commit']['seconds']):.3f} s")


if __name__ == "__main__":
    main()
