#!/usr/bin/env python3
"""Trains the same model in five ways, in turns: tokens per second, peak resident memory, bytes read and written per step.

    PYTHON=python-with-torch-and-deepspeed bench/compare/side_by_side.py [--disk DIR] [--rounds 5] [--steps 8] [--tokens 2048]
        [--dtype fp32,bf16] [--sides NAME,…] [--malloc both|plain|kept] [--terrace PROGRAM] [--markdown FILE]

terrace-disk     terrace, state on disk: 256 MiB of device memory, 256 MiB of host memory
zero-infinity    DeepSpeed ZeRO-Infinity on its CPU accelerator, parameters and optimizer states on disk, bounds set
terrace-memory   terrace, everything in memory
eager, compiled  PyTorch, everything in memory; compiled: torch.compile

The model is a Llama of 85M parameters (12 layers, hidden 768, 12 heads, vocabulary 256, sequences of 256). All sides start from the same
weights and train on the same batch at every step with AdamW, on the same number of threads. Each side runs in a process of its own; a
round runs every side once. The first --warm-up steps of a turn are not timed. If the losses of a step differ from those of the first
side, the script fails. A side that is not installed is skipped and named.

--malloc sets how glibc's malloc works for PyTorch. plain: the default; it returns large blocks to the system, and gets them again page by
page at the next step. kept: environment variables make it keep them, which takes more memory. both (the default): a side for each.
DeepSpeed's malloc is always plain: kept doubles its memory.

Exit codes: 0, 1 when losses differ or a side fails, 2 for wrong arguments.
"""

import pathlib
import shutil
import sys
import tempfile

import side_by_side_setting as common
import sides
import watched

TERRACE_SIDES = {"terrace-disk": "terrace, state on disk (256 + 256 MiB)", "terrace-memory": "terrace in memory"}
RIVALS = {"zero-infinity": "DeepSpeed ZeRO-Infinity, parameters and states on disk", "eager": "PyTorch eager",
          "compiled": "PyTorch compiled"}
MALLOCS = {"both": ["plain", "kept"], "plain": ["plain"], "kept": ["kept"]}
# Largest allowed difference between a step's loss and that of the first side. bf16 sides round at different places.
LIMITS = {"fp32": 5e-3, "bf16": 5e-2}


class Side:
    def __init__(self, name, malloc):
        self.name, self.malloc, self.turns = name, malloc, []
        self.title = {**TERRACE_SIDES, **RIVALS}[name] + {"plain": "", "kept": ", malloc keeps its memory"}[malloc]

    def turn(self, setting, options, folder):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "disk").mkdir(parents=True)
        if self.name in TERRACE_SIDES:
            command, steps_file = common.terrace_command(self.name, setting, options.terrace, folder)
            environment = common.terrace_environment(folder.parent)
        else:
            command, steps_file = common.rival_command(self.name, setting, folder)
            environment = common.rival_environment(setting, folder.parent, self.malloc)
        self.turns.append(watched.run(command, steps_file, folder / "log", environment, options.warm_up))
        shutil.rmtree(folder)
        timed = self.turns[-1]["seconds"][options.warm_up:]
        self.turns[-1]["speed"] = options.tokens * len(timed) / sum(timed)

    def speeds(self):
        """Median and middle half over the rounds."""
        return "{:.0f} ({:.0f} .. {:.0f})".format(*sides.middle([turn["speed"] for turn in self.turns]))

    def gib(self, what):
        """Median over the rounds: torch.compile needs more memory in the first round; later rounds use its cache."""
        return f"{sides.middle([turn[what] for turn in self.turns])[0] / sides.GIB:.2f} GiB"


def chosen_sides(options):
    """The sides to run, each with its malloc; prints a line for each that is skipped."""
    found = []
    for name in options.sides:
        absent = common.absent(name)
        if absent:
            print(f"SKIPPED {name}: {absent}", flush=True)
        else:
            found += [(name, malloc) for malloc in (MALLOCS[options.malloc] if name in ("eager", "compiled") else ["plain"])]
    return found


def loss_differences(all_sides, dtype):
    """A text for each side whose losses differ from those of the first side by more than rounding; prints the difference of every side."""
    first, wrong = all_sides[0].turns[0]["losses"], []
    for side in all_sides:
        gaps = [abs(a - b) for turn in side.turns for a, b in zip(turn["losses"], first, strict=True)]
        print(f"  {side.title:<62} largest difference of a loss {max(gaps):.1e}", flush=True)
        if not all(gap <= LIMITS[dtype] for gap in gaps):  # a NaN fails too
            wrong.append(f"{dtype}: losses of {side.title} differ by {max(gaps):.3e}, at most {LIMITS[dtype]} is allowed: "
                         f"{side.turns[0]['losses']} and {first}")
    if len({tuple(turn["losses"]) for side in all_sides if side.name in TERRACE_SIDES for turn in side.turns}) > 1:
        wrong.append(f"{dtype}: terrace's losses are not bit-identical in all turns, on disk and in memory")
    return wrong


def show(all_sides):
    for side in all_sides:
        print(f"  {side.title:<62} {side.speeds():>20} tokens/s  peak {side.gib('peak'):>9}  a step reads {side.gib('read'):>8} of disk, writes "
              f"{side.gib('written'):>8}", flush=True)


def one_dtype(dtype, options, folder, chosen):
    setting = common.setting(dtype, options, folder)
    all_sides = [Side(name, malloc) for name, malloc in chosen]
    for number in range(1, options.rounds + 1):
        for side in all_sides:
            side.turn(setting, options, folder / "turn")
            print(f"{dtype}, round {number} of {options.rounds}: {side.title}: {side.turns[-1]['speed']:.0f} tokens/s", flush=True)
    print(f"{dtype}, {options.tokens} tokens a step, {options.threads} threads, steps {options.warm_up + 1} to {options.steps}")
    show(all_sides)
    return all_sides, loss_differences(all_sides, dtype)


def markdown(results):
    """The table of the docs: one row per side, two columns per dtype."""
    lines = ["| | " + " | ".join(f"{dtype}, tokens/s (middle half) | peak memory" for dtype in results) + " |",
             "|---|" + "---|---|" * len(results)]
    for rows in zip(*results.values()):
        lines.append(f"| {rows[0].title} | " + " | ".join(f"{side.speeds()} | {side.gib('peak')}" for side in rows) + " |")
    return "\n".join(lines) + "\n"


def main():
    options = common.arguments(__doc__)
    results, wrong = {}, []
    print(common.versions(options.terrace), flush=True)
    chosen = chosen_sides(options)
    if not chosen:
        sys.exit("none of these sides is installed")
    with tempfile.TemporaryDirectory(prefix="terrace-compare-", dir=options.disk) as name:
        folder = pathlib.Path(name).resolve()
        common.prepare(options, folder, [side for side, _ in chosen])
        for dtype in options.dtype.split(","):
            try:
                results[dtype], differences = one_dtype(dtype, options, folder, chosen)
            except watched.Failed as failed:
                sys.exit(f"{dtype}: {failed}")
            wrong += differences
    table = markdown(results)
    print("\n" + table)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(table, encoding="utf-8")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
