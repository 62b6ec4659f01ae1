"""Runs of `terrace train` for the comparisons in this folder: the runs, the metrics of their steps, medians with their spread."""

import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "build/release/bin/terrace"))


def corpus(folder):
    """Enough text for any of these runs; its content does not affect the time of a step."""
    path = pathlib.Path(folder) / "words.txt"
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(2000)]
    path.write_text(" ".join(draw.choices(words, k=400_000)))
    return path


def terrace(*arguments):
    done = subprocess.run([TERRACE, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"terrace {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def train(folder, *flags):
    """One run in a fresh directory: its plan and the metrics of its steps."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    terrace("train", "--out-dir", out, *flags)
    plan = json.loads((out / "plan.json").read_text())
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    return plan, steps


def summary(values):
    """Median and the range of the middle half."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return statistics.median(ordered), ordered[quarter], ordered[-1 - quarter]


def show(name, values, unit, scale=1.0):
    median, low, high = (v * scale for v in summary(values))
    print(f"{name:<44} {median:9.3f} {unit}  (middle half {low:.3f} .. {high:.3f}, n = {len(values)})", flush=True)
    return median
