"""bench/gpu.sh: the acceptance on one GPU. Runs the rows of its table in order, the most valuable first, within 580 seconds.

Each row has its deadline and its entry in OUT/gpu.json. Beside it are table.md, the machine profile, algorithms.txt with every choice
of an algorithm, and logs/ with all output. --small rehearses with tiny models, on the CPU device or any GPU. --plan only plans the runs.
"""

import argparse
import functools
import pathlib
import signal
import sys
import time

from gpu_use import GpuUse
from more import MORE
from record import Record
from rows import BUDGET_S, TABLE
from setting import HERE, Setting

ROWS = TABLE + MORE


def listing():
    lines = ["| # | row | check | s | decides | left out |", "|---|---|---|---|---|---|"]
    return "\n".join(lines + [f"| {n} | {r.name} | {r.check} | {r.seconds} | {r.decides} | {r.leaves_out} |" for n, r in enumerate(ROWS)])


def in_short(figures):
    """The figure of a part that a reader looks for first."""
    if "tokens_s" in figures:
        return f"{figures['tokens_s']:,.0f} tokens/s" + (f", {figures['cut']}" if "cut" in figures else "")
    for kind in ("error", "cut", "missing"):
        if kind in figures:
            return figures[kind].splitlines()[-1]
    return f"{figures['ran']} passed" if "ran" in figures else f"{figures['plan_s']:.2f} s planned" if "plan_s" in figures else "done"


def table(rows):
    """A line a row, for docs/internals/gpu.md."""
    lines = ["| # | check | s | ended | result |", "|---|---|---|---|---|"]
    for number, row in sorted(rows.items()):
        told = [f"{name}: {in_short(figures)}" for name, figures in row["result"].items()]
        told += [f"{name}: {v:.3f}" if isinstance(v, float) else f"{name}: {v}" for name, v in row.get("verdict", {}).items()]
        told += [row["why"].splitlines()[-1]] if "verdict" not in row and row["why"] else []
        lines.append(f"| {number} | {row['check']} | {row.get('seconds', '')} | {row['state']} | {'; '.join(told).replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def chosen(text):
    """The numbers of rows that are named like "0,3,5-7,bits"."""
    numbers = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        if first.isdigit():
            numbers += range(int(first), int(last or first) + 1)
        else:
            numbers += [number for number, row in enumerate(ROWS) if row.name == word]
        if not numbers or numbers[-1] >= len(ROWS):
            raise argparse.ArgumentTypeError(f"there is no row {word}; see --list")
    return numbers


def arguments(words=None):
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--only", type=chosen, metavar="ROWS", help="numbers or names, as 0,3,5-7,bits; else the table, 0 to 10")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all rows together (default %(default)s)")
    parser.add_argument("--folder", default="build/folder", help="of cmake --install … --component folder")
    parser.add_argument("--tests", help="where the test programs are; else FOLDER/tests")
    parser.add_argument("--out", help="the folder of the results; else a new one in bench/gpu/results")
    parser.add_argument("--scratch", default="build/gpu-bench", help="for runs, which are removed, and the machine profile, which stays")
    parser.add_argument("--disk", help="a folder on the disk of the disk tier; else in the scratch folder")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--patience", type=float, default=1, help="the budget and all deadlines times this, for slow builds")
    parser.add_argument("--small", action="store_true", help="tiny models, a few seconds a row")
    parser.add_argument("--plan", metavar="PROFILE", help="only plan the runs, for the machine of this profile")
    parser.add_argument("--tiers", default="75GiB,118GiB,50GiB", help="with --plan: its device, host and disk memory (default %(default)s)")
    return parser.parse_args(words)


def main():
    options = arguments()
    if options.list:
        print(listing())
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that commands are ended and the row is recorded
    out = pathlib.Path(options.out or HERE / "results" / time.strftime("%Y-%m-%d-%H%M")).resolve()
    about = {"began": time.strftime("%Y-%m-%dT%H:%M:%S"), "device": options.device, "budget_s": options.budget, "small": options.small,
             "planned": bool(options.plan)}

    def after(rows):
        setting.keep_profile()
        (out / "table.md").write_text(table(rows))

    record = Record(out, options.budget, about, options.patience, functools.partial(GpuUse, options.device), after)
    setting = Setting(options, out)
    try:
        states = [record.run(n, ROWS[n], setting) for n in options.only or range(len(TABLE))]
    finally:
        setting.clear()
    sys.exit(1 if "failed" in states or "cut" in states else 0)


if __name__ == "__main__":
    main()
