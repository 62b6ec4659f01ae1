#!/usr/bin/env python3
"""Makes a table of which models fit on which machines, in Markdown, from `terrace plan --json` with the shipped cluster profiles.

    bench/what_fits.py [--write PAGE] [--jobs N]

Every model is planned with LoRA and with all weights trained, without the disk if that fits, else with it. A step has the same number of
tokens everywhere. --write replaces the text between the two marks of a page.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", str(ROOT / "build/release/bin/terrace"))
BEGIN, END = "<!-- what fits -->", "<!-- /what fits -->"

SEQUENCES, LENGTH = 16, 2048  # per step; each micro-batch has one sequence
TOKENS = SEQUENCES * LENGTH
DOES_NOT_FIT = 3  # exit code
GIB = 1 << 30


@dataclasses.dataclass
class Machine:
    name: str
    profile: str
    device: int  # budgets in bytes: what auto would choose there, rounded
    host: int

    @property
    def flags(self):
        return ["--cluster-profile", self.profile, "--device-memory", f"{self.device // GIB}GiB", "--host-memory",
                f"{self.host // GIB}GiB"]


@dataclasses.dataclass
class Model:
    name: str
    flags: list


MACHINES = [
    Machine("A GPU of 24 GB, 64 GB of memory", "gpu-24gb", 22 * GIB, 50 * GIB),
    Machine("A GPU of 80 GB, 128 GB of memory", "gpu-80gb", 75 * GIB, 100 * GIB),
    Machine("No GPU, 8 cores, 64 GB of memory", "cpu-64gb", 28 * GIB, 25 * GIB),
]


def llama(layers, hidden, heads, ffn):
    return ["--model", "llama", "--layers", layers, "--hidden", hidden, "--heads", heads, "--kv-heads", 8, "--ffn", ffn,
            "--vocab", 128256]


def qwen3(layers, heads, ffn):
    return ["--model", "qwen3", "--layers", layers, "--hidden", 5120, "--heads", heads, "--kv-heads", 8, "--head-dim", 128,
            "--ffn", ffn, "--vocab", 151936, "--untied"]


MODELS = [
    Model("1B (Llama 3.2)", llama(16, 2048, 32, 8192)),
    Model("8B (Llama 3.1)", [*llama(32, 4096, 32, 14336), "--untied"]),
    Model("32B (Qwen3)", qwen3(64, 64, 25600)),
    Model("70B (Llama 3.1)", [*llama(80, 8192, 64, 28672), "--untied"]),
]
MODES = {"LoRA": ["--lora-rank", 16, "--lora-targets", "all"], "all weights": []}


def plan(folder, *flags):
    command = [TERRACE, "plan", "--json", "--device", "auto", "--dtype", "bf16", "--seq-len", LENGTH, "--batch-size", 1,
               "--grad-accumulation", SEQUENCES, "--ckpt-interval", 100, *flags]
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, DOES_NOT_FIT):
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(done.stdout)


def figure(number):
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def gib(amount):
    return figure(amount / GIB) if amount >= GIB // 4 else "0"


def streams(one):
    """The tiers below the device from which a step reads at least one GiB."""
    sources = [name for name, key in (("memory", "h2d"), ("disk", "read")) if one["bytes"][key] >= GIB]
    return " and ".join(sources) or "–"


def row(folder, machine, model, mode):
    flags = [*model.flags, *MODES[mode], *machine.flags]
    one = plan(folder, *flags, "--nvme-path", "disk")
    # Without the disk, host memory must hold all weights once, and the two tiers together the whole state.
    if 2 * one["parameters"] < machine.host and one["state_bytes"] < machine.device + machine.host:
        resident = plan(folder, *flags)
        one = resident if resident["fits"] else one
    print(f"planned: {machine.name}, {model.name}, {mode}", file=sys.stderr, flush=True)
    cells = [model.name, mode]
    if not one["fits"]:
        missing = f"does not fit: {gib(one['missing_bytes'])} GiB are missing in the {one['tier']} tier"
        return [*cells, missing, "", "", "", "", "", ""]
    peak = one["peak_bytes"]
    return [*cells, streams(one), figure(one["step_time_s"]), f"{TOKENS / one['step_time_s']:,.0f}", one["link"] or one["binding"],
            gib(peak["device"]), gib(peak["host"]), gib(peak["nvme"])]


def table(folder, jobs):
    head = ["model", "trained", "streams from", "s a step", "tokens/s", "bound by", "device, GiB", "host", "disk"]
    cells = [(machine, model, mode) for machine in MACHINES for model in MODELS for mode in MODES]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        rows = dict(zip([(machine.name, model.name, mode) for machine, model, mode in cells],
                        pool.map(lambda cell: row(folder, *cell), cells)))
    lines = []
    for machine in MACHINES:
        lines += ["", f"**{machine.name}** (`{' '.join(machine.flags)}`)", "", "| " + " | ".join(head) + " |",
                  "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(rows[machine.name, model.name, mode]) + " |" for model in MODELS for mode in MODES]
    return "\n".join(lines).strip()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", metavar="PAGE", type=pathlib.Path)
    arguments.add_argument("--jobs", type=int, default=2, help="plans at the same time")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="terrace-what-fits-") as folder:
        text = f"{BEGIN}\n{table(folder, options.jobs)}\n{END}"
    if not options.write:
        print(text)
        return
    page = options.write.read_text()
    replaced, times = re.subn(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: text, page, flags=re.DOTALL)
    if times != 1:
        sys.exit(f"{options.write}: {BEGIN} and {END} must stand there once\n  add them where the table is to stand")
    options.write.write_text(replaced)


if __name__ == "__main__":
    main()
