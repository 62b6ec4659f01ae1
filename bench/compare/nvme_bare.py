#!/usr/bin/env python3
"""Compares `terrace bench nvme` with the minimal program that moves a file's bytes through io_uring (bare_ring.cpp): the same folder, file
size, block size and depth, in turns.

    bench/compare/nvme_bare.py [--disk DIR] [--size 1GiB] [--rounds 7] [--block-size 8MiB] [--queue-depth 32]

BARE_RING=…/bare_ring, else the release build's (it is built with the other benchmarks).
"""

import argparse
import os
import tempfile

import sides

BARE_RING = os.environ.get("BARE_RING", str(sides.ROOT / "build/release/bench/bare_ring"))
TURN_PASSES = 3  # as in terrace: a turn is the median of three passes


def bare_turn(folder, op, file_bytes, *shape):
    with sides.written_file(folder, file_bytes) as file:
        passes = [[float(word) for word in sides.run([BARE_RING, file, op, file_bytes, *shape]).split()] for _ in range(TURN_PASSES)]
    return tuple(sides.middle(figures)[0] for figures in zip(*passes))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(arguments)
    options = arguments.parse_args()
    shape = (options.size, options.block_size, options.queue_depth)
    with tempfile.TemporaryDirectory(prefix="terrace-compare-", dir=options.disk) as folder:
        for op in ("read", "write"):
            print(f"{op}, {options.block_size >> 10} KiB × {options.queue_depth}, a file of {options.size >> 20} MiB")
            ours, bare = [], []
            for turn in range(options.rounds):
                both = [lambda: ours.append(sides.terrace(folder, op, *shape)), lambda: bare.append(bare_turn(folder, op, *shape))]
                for side in both if turn % 2 == 0 else reversed(both):
                    side()
            sides.show("terrace bench nvme", ours)
            sides.show("bare ring", bare)
            sides.show_ratio("terrace ÷ bare ring", ours, bare)


if __name__ == "__main__":
    main()
