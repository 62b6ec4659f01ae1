#!/usr/bin/env python3
"""Whether compact recipes learn as fp32 states do: the quickstart's model, trained once under each recipe with all else the same; the last
evaluation's loss of each beside that of recipe fp32. Ends with 1 if one is more than --most per cent above it.

    bench/recipes_train.py [--text FILE] [--steps N] [--dtype bf16,fp32] [--optimizer NAME] [--lr RATE] [--seeds N]

The text is the quickstart's (runs/quickstart-data/bible.txt) unless another one is named. Only the losses count, so it does not matter
what else the machine does, but for the time it takes.
"""

import argparse
import json
import statistics
import sys
import tempfile

import runs

# As examples/quickstart.sh, without its budgets: offloading changes no bit.
MODEL = ["--model", "llama", "--layers", "6", "--hidden", "384", "--heads", "6", "--seq-len", "256", "--batch-size", "2",
         "--grad-accumulation", "4", "--order", "vertical", "--warmup", "20", "--assumed-costs", "--durability", "off"]
RECIPES = {
    "fp32": ["fp32", "bf16", "8bit"],
    "bf16": ["fp32", "bf16", "8bit", "split", "split-8bit", "stochastic", "all-bf16"],
}


def main():
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
    options = arguments.parse_args()
    above = []
    with tempfile.TemporaryDirectory(prefix="terrace-bench-", dir=options.folder) as folder:
        for dtype in options.dtype.split(","):
            plain = None
            for recipe in RECIPES[dtype]:
                losses = []
                for seed in range(1, options.seeds + 1):
                    _, steps = runs.train(folder, *MODEL, "--data", options.text, "--steps", options.steps, "--dtype", dtype, "--recipe",
                                          recipe, "--optimizer", options.optimizer, "--lr", options.lr, "--seed", seed, "--eval-batches",
                                          options.eval_batches)
                    losses.append(steps[-1]["eval_loss"])
                loss = statistics.mean(losses)
                plain = plain or loss
                more = 100 * (loss / plain - 1)
                print(json.dumps({"optimizer": options.optimizer, "dtype": dtype, "recipe": recipe, "steps": options.steps,
                                  "eval_loss": loss, "percent_above_fp32": round(more, 3), "seeds": losses}), flush=True)
                if more > options.most:
                    above.append(f"{dtype} {recipe}: {more:.2f} %")
    if above:
        sys.exit(f"more than {options.most} % above recipe fp32: " + ", ".join(above))


if __name__ == "__main__":
    main()
