"""Runs of the program, for the scripts that compare it with other libraries."""

import json
import os
import subprocess
import sys


def outcome(program, folder, *words):
    """The exit code, what it printed, and its errors."""
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "XDG_CACHE_HOME": str(folder)})  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def terrace(program, folder, *words):
    code, out, said = outcome(program, folder, *words)
    if code != 0:
        sys.exit(f"terrace {words} ended with {code}:\n{said}")
    return out


def losses(folder, run):
    return [json.loads(line)["loss"] for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
