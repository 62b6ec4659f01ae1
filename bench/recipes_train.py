#!/usr/bin/env python3
"""Checks that compact recipes learn as well as fp32 states: trains the quickstart's model once under each recipe, with all else the same, and
compares the loss of the last evaluation with that of recipe fp32. Ends with 1 if one is more than --most per cent higher.

    bench/recipes_train.py [--text FILE] [--steps N] [--dtype bf16,fp32] [--recipes NAME,…] [--optimizer NAME] [--lr RATE] [--seeds N]
                           [--keep FILE] [--minutes M]

The text is the quickstart's (runs/quickstart-data/bible.txt) unless another one is named. Only the losses count, so other load on the
machine costs only time. With --keep, the loss of each run is stored in FILE when it ends, and no run is repeated. With --minutes, no run
begins after M minutes, and the script ends with 75: call it again until it ends with 0 or 1.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

import runs

# As in examples/quickstart.sh, without its budgets: offloading changes no bit of the results.
MODEL = ["--model", "llama", "--layers", "6", "--hidden", "384", "--heads", "6", "--seq-len", "256", "--batch-size", "2",
         "--grad-accumulation", "4", "--order", "vertical", "--warmup", "20", "--assumed-costs", "--durability", "off"]
RECIPES = {
    "fp32": ["fp32", "bf16", "8bit"],
    "bf16": ["fp32", "bf16", "8bit", "split", "split-8bit", "split24-8bit", "stochastic", "all-bf16"],
}


class Kept:
    """The loss of the last evaluation of every run so far, by all settings that affect it."""

    def __init__(self, path):
        self.path = pathlib.Path(path) if path else None
        text = self.path.read_text() if self.path and self.path.exists() else ""
        self.losses = {json.dumps(run): loss for run, loss in map(json.loads, text.splitlines())}

    def find(self, run):
        return self.losses.get(json.dumps(run))

    def add(self, run, loss):
        self.losses[json.dumps(run)] = loss
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps([run, loss]) + "\n")


def main():
    begin = time.monotonic()
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--text", default=str(runs.ROOT / "runs/quickstart-data/bible.txt"))
    arguments.add_argument("--steps", type=int, default=140)
    arguments.add_argument("--dtype", default="bf16,fp32")
    arguments.add_argument("--optimizer", default="adamw")
    arguments.add_argument("--lr", default="1e-3")
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--eval-batches", type=int, default=32)
    arguments.add_argument("--most", type=float, default=1.0, help="per cent")
    arguments.add_argument("--folder", default=".", help="where runs are kept while they last")
    arguments.add_argument("--recipes", default="", help="of these only; fp32, which the others are compared with, is always there")
    arguments.add_argument("--keep", default="", help="a file of losses: what is in it is not run again")
    arguments.add_argument("--minutes", type=float, default=0, help="no run begins after so many (0: all run)")
    options = arguments.parse_args()
    chosen = {"fp32", *options.recipes.split(",")} if options.recipes else set(sum(RECIPES.values(), []))
    kept = Kept(options.keep)
    above = []
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=options.folder) as folder:
        for dtype in options.dtype.split(","):
            plain = None
            for recipe in (r for r in RECIPES[dtype] if r in chosen):
                losses = []
                for seed in range(1, options.seeds + 1):
                    flags = [*MODEL, "--data", options.text, "--steps", options.steps, "--dtype", dtype, "--recipe", recipe, "--optimizer",
                             options.optimizer, "--lr", options.lr, "--seed", seed, "--eval-batches", options.eval_batches]
                    run = [str(flag) for flag in flags]
                    loss = kept.find(run)
                    if loss is None:
                        if options.minutes and time.monotonic() - begin > 60 * options.minutes:
                            print(f"{options.minutes} minutes are over before {dtype} {recipe}: call again", file=sys.stderr)
                            return 75
                        _, steps = runs.train(folder, *flags)
                        loss = steps[-1]["eval_loss"]
                        kept.add(run, loss)
                    losses.append(loss)
                loss = statistics.mean(losses)
                plain = plain or loss
                more = 100 * (loss / plain - 1)
                print(json.dumps({"optimizer": options.optimizer, "dtype": dtype, "recipe": recipe, "steps": options.steps,
                                  "eval_loss": loss, "percent_above_fp32": round(more, 3), "seeds": losses}), flush=True)
                if more > options.most:
                    above.append(f"{dtype} {recipe}: {more:.2f} %")
    if above:
        sys.exit(f"more than {options.most} % above recipe fp32: " + ", ".join(above))
    return 0


if __name__ == "__main__":
    sys.exit(main())
