"""What the comparisons in this folder share: one run of `terrace bench nvme`, turns, ratios with their spread."""

import contextlib
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "build/release/bin/terrace"))
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
GIB = 1 << 30


def size(text):
    """The number of bytes of "8MiB"."""
    digits = text.rstrip("KMGiB")
    if not digits.isdigit() or text[len(digits):] not in UNITS:
        raise ValueError(f"{text} is no size: 8MiB, 1GiB, 4096")
    return int(digits) * UNITS[text[len(digits):]]


def add_arguments(arguments):
    arguments.add_argument("--disk", default=".", help="a folder on the disk to measure")
    arguments.add_argument("--size", type=size, default=GIB, help="of the file (1GiB)")
    arguments.add_argument("--rounds", type=int, default=7, help="turns of each side (7)")
    arguments.add_argument("--block-size", type=size, default=8 << 20, help="of one request, on both sides (8MiB)")
    arguments.add_argument("--queue-depth", type=int, default=32, help="requests in flight, on both sides (32)")


def run(command):
    """The standard output of a command. If the command fails, the script ends with its error output."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not there: build it first (cmake --preset release && cmake --build --preset release)")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}{done.stdout}")
    return done.stdout


def terrace(disk, op, file_bytes, block_bytes, depth):
    """One turn: GB/s and CPU seconds per GiB, medians of the program's three runs."""
    out = run([TERRACE, "bench", "nvme", disk, "--op", op, "--size", file_bytes, "--block-size", block_bytes, "--queue-depth", depth,
               "--runs", 3, "--json"])
    result = json.loads(out)["results"][0]
    return result["gb_per_s"], result["cpu_s_per_gib"]


@contextlib.contextmanager
def written_file(folder, file_bytes):
    """A new file for one turn of another program, as `terrace bench nvme` makes one for each of its runs: on a shared disk, the speed of a
    file depends on its place. It is written, because a read of unwritten blocks does not reach the disk."""
    file = pathlib.Path(folder) / "turn.data"
    with mmap.mmap(-1, 8 << 20) as block:  # whole pages, as O_DIRECT wants them
        block.write(os.urandom(len(block)))
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, file_bytes)
            left = file_bytes
            while left > 0:
                with memoryview(block) as view, view[:min(left, len(block))] as part:
                    left -= os.write(descriptor, part)
            yield file
        finally:
            os.close(descriptor)
            file.unlink()


def middle(values):
    """Median, and the range of the middle half."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return statistics.median(ordered), ordered[quarter], ordered[-1 - quarter]


def show(name, turns):
    """Prints one line for a side: its GB/s and CPU time."""
    speed, low, high = middle([gb for gb, _ in turns])
    cpu, _, _ = middle([c for _, c in turns])
    print(f"  {name:<34} {speed:7.3f} GB/s  (middle half {low:.3f} .. {high:.3f}, n = {len(turns)})  {1e3 * cpu:7.2f} ms of CPU a GiB",
          flush=True)


def show_ratio(name, ours, theirs):
    """Prints ratios taken turn by turn, so that a slow minute of the machine does not change them."""
    speed, low, high = middle([a / b for (a, _), (b, _) in zip(ours, theirs)])
    print(f"  {name:<34} {speed:7.3f} times the speed (middle half {low:.3f} .. {high:.3f})", end="")
    pairs = [(a, b) for (_, a), (_, b) in zip(ours, theirs) if b > 0]
    if pairs:
        cpu, low, high = middle([a / b for a, b in pairs])
        print(f", {cpu:.3f} of the CPU time (middle half {low:.3f} .. {high:.3f})", end="")
    print(flush=True)
