#!/usr/bin/env python3
"""Compares `terrace bench nvme` with DeepSpeed's asynchronous I/O library, in turns: the same folder, file size, block size and depth,
reading and writing; DeepSpeed with and without pinned buffers.

    bench/compare/nvme_deepspeed.py [--disk DIR] [--size 1GiB] [--rounds 7] [--block-size 8MiB] [--queue-depth 32] [--threads 1]

Needs a Python with torch and deepspeed (PYTHON=…): without one it says so and ends with 2.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import sides

# The program that runs under that Python: prints a line of JSON for each direction and kind of buffer, with three passes each.
THEIRS = r"""
import json, resource, sys, time
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
file, file_bytes, block_bytes, depth, threads = sys.argv[1], *map(int, sys.argv[2:])
library = AsyncIOBuilder().load(verbose=False)
handle = library.aio_handle(block_bytes, depth, False, True, threads)

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def timed(transfer):
    passes = []
    for _ in range(3):
        busy, begin = cpu(), time.perf_counter()
        assert transfer() in (0, 1)
        seconds = time.perf_counter() - begin
        passes.append((1e-9 * file_bytes / seconds, (cpu() - busy) / (file_bytes / 2**30)))
    return sorted(passes)[1]

plain = torch.randint(0, 256, (file_bytes,), dtype=torch.uint8)
pinned = handle.new_cpu_locked_tensor(file_bytes, plain)
pinned.copy_(plain)
out = {}
for name, buffer in (("pinned", pinned), ("unpinned", plain)):
    out["write " + name] = timed(lambda: handle.sync_pwrite(buffer, file))
    out["read " + name] = timed(lambda: handle.sync_pread(buffer, file))
assert torch.equal(plain[:1 << 20], pinned[:1 << 20])
print(json.dumps(out))
"""
PYTHON = os.environ.get("PYTHON", sys.executable)


def deepspeed_turn(folder, options):
    file = pathlib.Path(folder) / "deepspeed.data"
    out = sides.run([PYTHON, "-c", THEIRS, file, options.size, options.block_size, options.queue_depth, options.threads])
    file.unlink(missing_ok=True)
    return {name: tuple(figures) for name, figures in json.loads(out.strip().splitlines()[-1]).items()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(arguments)
    arguments.add_argument("--threads", type=int, default=1, help="of DeepSpeed's handle (1)")
    options = arguments.parse_args()
    probe = subprocess.run([PYTHON, "-c", "import torch, deepspeed"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        print(f"DeepSpeed cannot be imported by {PYTHON}: there is nothing to compare with\n  "
              f"{probe.stderr.strip().splitlines()[-1]}; give a Python that has it: PYTHON=…", file=sys.stderr)
        return 2
    ours = {"read": [], "write": []}
    theirs = {}
    with tempfile.TemporaryDirectory(prefix="terrace-compare-", dir=options.disk) as folder:
        for _ in range(options.rounds):
            for op, turns in ours.items():
                turns.append(sides.terrace(folder, op, options.size, options.block_size, options.queue_depth))
            for name, figures in deepspeed_turn(folder, options).items():
                theirs.setdefault(name, []).append(figures)
    for op, turns in ours.items():
        print(f"{op}, {options.block_size >> 10} KiB × {options.queue_depth}, a file of {options.size >> 20} MiB")
        sides.show("terrace bench nvme", turns)
        for name in (f"{op} pinned", f"{op} unpinned"):
            sides.show("DeepSpeed, " + name, theirs[name])
            sides.show_ratio("terrace ÷ DeepSpeed", turns, theirs[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
