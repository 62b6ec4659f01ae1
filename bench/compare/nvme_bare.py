#!/usr/bin/env python3
"""`terrace bench nvme` beside the least that moves a file's bytes through io_uring (bare_ring.cpp): the same folder, file size, block
size and depth, in turns.

    bench/compare/nvme_bare.py [--disk DIR] [--size 1GiB] [--rounds 7] [--block-size 8MiB] [--queue-depth 32]

BARE_RING=…/bare_ring, else the release build's (it is built with the other benchmarks).
"""

import argparse
import os
import pathlib
import tempfile

import sides

BARE_RING = os.environ.get("BARE_RING", str(sides.ROOT / "build/release/bench/bare_ring"))
TURN_PASSES = 3  # as terrace's: a turn is the median of three passes


def bare_turn(file, op, *shape):
    passes = [[float(word) for word in sides.run([BARE_RING, file, op, *shape]).split()] for _ in range(TURN_PASSES)]
    return tuple(sides.middle(figures)[0] for figures in zip(*passes))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(arguments)
    options = arguments.parse_args()
    shape = (options.size, options.block_size, options.queue_depth)
    with tempfile.TemporaryDirectory(prefix="terrace-compare-", dir=options.disk) as folder:
        file = pathlib.Path(folder) / "bare.data"
        with open(file, "wb") as out:
            os.posix_fallocate(out.fileno(), 0, options.size)
        bare_turn(file, "write", *shape)  # what was never written is not read from the disk
        for op in ("read", "write"):
            print(f"{op}, {options.block_size >> 10} KiB × {options.queue_depth}, a file of {options.size >> 20} MiB")
            ours, bare = [], []
            for turn in range(options.rounds):
                both = [lambda: ours.append(sides.terrace(folder, op, *shape)), lambda: bare.append(bare_turn(file, op, *shape))]
                for side in both if turn % 2 == 0 else reversed(both):
                    side()
            sides.show("terrace bench nvme", ours)
            sides.show("bare ring", bare)
            sides.show_ratio("terrace ÷ bare ring", ours, bare)


if __name__ == "__main__":
    main()
