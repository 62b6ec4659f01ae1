#!/usr/bin/env python3
"""Compares `terrace bench nvme` with fio: the same folder, file size, block size, depth and direction, in turns. For each direction, a sweep
first finds the best settings of fio: buffers registered or not, on huge pages or plain memory, files registered or not; with --own-shape
also its own best block size and depth.

    bench/compare/nvme_fio.py [--disk DIR] [--size 1GiB] [--rounds 7] [--ops read,write,randread,mixed] [--block-size 8MiB]
                              [--queue-depth 32] [--own-shape]

Random reads are of --random-block-size (1MiB), on both sides. fio needs huge pages: sysctl vm.nr_hugepages=N, 2 MiB each, a few
more than block size times depth. The script names what fio cannot do here.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile

import sides

MIB = 1 << 20
DIRECTIONS = {"read": ["--rw=read"], "write": ["--rw=write"], "randread": ["--rw=randread"], "mixed": ["--rw=rw", "--rwmixread=50"]}
# Each combination is tried if this kernel, this fio and its limits permit it.
WAYS = [[*buffers, *memory, *files]
        for buffers in ([], ["--fixedbufs=1"])
        for memory in ([], ["--iomem=mmaphuge"])
        for files in ([], ["--registerfiles=1"])]
SHAPES = [(block, depth) for block in (256 << 10, MIB, 4 * MIB, 8 * MIB) for depth in (8, 32, 128) if block * depth <= sides.GIB]
SWEEP_PASSES = 5
AS_FAST = 0.98  # of the fastest rate: a smaller difference is noise
TURN_PASSES = 3  # as in terrace: a turn is the median of three passes


def fio_pass(file, op, file_bytes, block_bytes, depth, way):
    """One pass over the file: GB/s and CPU seconds per GiB, or the message of fio if it cannot do it in this way."""
    command = ["fio", "--name=compare", f"--filename={file}", f"--size={file_bytes}", *DIRECTIONS[op], f"--bs={block_bytes}",
               f"--iodepth={depth}", "--ioengine=io_uring", "--direct=1", "--output-format=json", *way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip() or done.stdout.strip()
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    if job["error"] != 0:
        return None, f"error {job['error']}"
    moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
    # Both directions run at once: the time of the pass is the longer one, in milliseconds, as fio reports no finer times.
    seconds = 1e-3 * max(job["read"]["runtime"], job["write"]["runtime"])
    busy = 1e-2 * (job["usr_cpu"] + job["sys_cpu"]) * 1e-3 * job["job_runtime"]
    return (1e-9 * moved / seconds, busy / (moved / sides.GIB)), None


def fio_turn(folder, op, file_bytes, *rest):
    passes = []
    with sides.written_file(folder, file_bytes) as file:
        for _ in range(TURN_PASSES):
            figures, why = fio_pass(file, op, file_bytes, *rest)
            if figures is None:
                sys.exit(f"fio: {why}")
            passes.append(figures)
    return sides.middle([gb for gb, _ in passes])[0], sides.middle([cpu for _, cpu in passes])[0]


def best_way(file, op, file_bytes, shapes):
    """The best settings of fio for this direction, by a sweep: shape, way. Of the settings that are as fast as the fastest, it takes the one with
    the least CPU time, as terrace's own sweep does."""
    tried, refused = [], {}
    for (block_bytes, depth), way in itertools.product(shapes, WAYS):
        passes = [fio_pass(file, op, file_bytes, block_bytes, depth, way) for _ in range(SWEEP_PASSES)]
        good = [figures for figures, _ in passes if figures is not None]
        if good:
            speed, cpu = (sides.middle([figures[i] for figures in good])[0] for i in (0, 1))
            tried.append((speed, cpu, block_bytes, depth, way))
        else:
            refused.setdefault(" ".join(way) or "no option", passes[0][1].splitlines()[0])
    for way, why in refused.items():
        print(f"  fio does not run here with {way}: {why}")
    if not tried:
        sys.exit("fio does not run with io_uring here")
    fastest = max(speed for speed, *_ in tried)
    speed, cpu, block_bytes, depth, way = min((t for t in tried if t[0] >= AS_FAST * fastest), key=lambda t: t[1])
    print(f"  fio's best of {len(tried)} settings that run here: {' '.join(way) or 'none of its options'}, {block_bytes >> 10} KiB × "
          f"{depth} (in the sweep {speed:.2f} GB/s, {1e3 * cpu:.1f} ms of CPU a GiB; the fastest {fastest:.2f} GB/s)", flush=True)
    return (block_bytes, depth), way


def compare(folder, op, options):
    block_bytes = options.random_block_size if op == "randread" else options.block_size
    shape = (block_bytes, options.queue_depth)
    print(f"{op}, {block_bytes >> 10} KiB × {options.queue_depth}, a file of {options.size >> 20} MiB")
    with sides.written_file(folder, options.size) as file:
        fio_shape, way = best_way(file, op, options.size, SHAPES + [shape] if options.own_shape else [shape])
    ours, theirs = [], []
    for turn in range(options.rounds):
        both = [lambda: ours.append(sides.terrace(folder, op, options.size, *shape)),
                lambda: theirs.append(fio_turn(folder, op, options.size, *fio_shape, way))]
        for side in both if turn % 2 == 0 else reversed(both):
            side()
    sides.show("terrace bench nvme", ours)
    sides.show("fio", theirs)
    sides.show_ratio("terrace ÷ fio", ours, theirs)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(arguments)
    arguments.add_argument("--ops", default="read,write,randread,mixed")
    arguments.add_argument("--random-block-size", type=sides.size, default=MIB)
    arguments.add_argument("--own-shape", action="store_true", help="let fio choose block size and depth, too")
    options = arguments.parse_args()
    unknown = [op for op in options.ops.split(",") if op not in DIRECTIONS]
    if unknown:
        arguments.error(f"--ops: {unknown[0]} is none of {', '.join(DIRECTIONS)}")
    if shutil.which("fio") is None:
        print("fio is not installed (apt-get install fio): there is nothing to compare with", file=sys.stderr)
        return 2
    print(subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip())
    with tempfile.TemporaryDirectory(prefix="terrace-compare-", dir=options.disk) as folder:
        for op in options.ops.split(","):
            compare(folder, op, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
