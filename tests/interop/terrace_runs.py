"""Runs of the program, for the scripts that compare it with other libraries."""

import json
import os
import subprocess
import sys


def terrace(program, folder, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "XDG_CACHE_HOME": str(folder)})  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"terrace {words} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def losses(folder, run):
    return [json.loads(line)["loss"] for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
