"""What side_by_side.py runs: arguments, the model's setting, first weights and text, the command and environment of each side."""

import argparse
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys

import sides

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("PYTHON", sys.executable)
MODEL = {"layers": 12, "hidden": 768, "heads": 12, "ffn": 2048, "vocab": 256, "seq": 256}
ADAMW = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "decay": 0.1, "clip": 1.0}
SIDES = ["terrace-disk", "zero-infinity", "terrace-memory", "eager", "compiled"]
BUDGETS = {"terrace-disk": "256MiB", "terrace-memory": "unlimited"}  # of the device tier and the host tier, each
SCRIPTS = {"zero-infinity": ["zero_infinity.py"], "eager": ["pytorch.py", "eager"], "compiled": ["pytorch.py", "compiled"]}
MODULES = {"zero-infinity": "torch, safetensors, deepspeed", "eager": "torch, safetensors", "compiled": "torch, safetensors"}
# glibc then serves large blocks from the heap, and never returns the end of the heap to the system.
KEPT = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "1073741824"}
BUILD_OPS = """
from deepspeed.accelerator import get_accelerator
for name in ("AsyncIOBuilder", "CPUAdamBuilder", "ShareMemCommBuilder"):
    get_accelerator().create_op_builder(name).load(verbose=False)
"""


def arguments(text):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", default=".", help="a folder on the disk to use")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (5)")
    parser.add_argument("--steps", type=int, default=8, help="of a turn, those of the warm-up included (8)")
    parser.add_argument("--warm-up", type=int, default=2, help="first steps of a turn, which are not timed (2)")
    parser.add_argument("--tokens", type=int, default=2048, help="of a step, a multiple of 256 (2048)")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of each side (2)")
    parser.add_argument("--layers", type=int, default=MODEL["layers"], help="fewer make a quick trial (12)")
    parser.add_argument("--dtype", default="fp32,bf16")
    parser.add_argument("--sides", default="", help="names from the list above, separated by commas; all by default")
    parser.add_argument("--malloc", choices=["both", "plain", "kept"], default="both", help="of PyTorch (both)")
    parser.add_argument("--recompute", action="store_true", help="DeepSpeed recomputes each block's activations in the backward pass")
    parser.add_argument("--terrace", default=sides.TERRACE, help="the program (that of the release build)")
    parser.add_argument("--markdown", default="", help="a file that gets the table")
    options = parser.parse_args()
    if options.tokens < MODEL["seq"] or options.tokens % MODEL["seq"] != 0:
        parser.error(f"--tokens must be a multiple of {MODEL['seq']}")
    if not 1 <= options.warm_up < options.steps or options.rounds < 1:
        parser.error("--warm-up must be at least 1 and less than --steps, and --rounds at least 1")
    if set(options.dtype.split(",")) - {"fp32", "bf16"}:
        parser.error("--dtype takes fp32, bf16 or both")
    options.sides = options.sides.split(",") if options.sides else SIDES
    if set(options.sides) - set(SIDES):
        parser.error(f"--sides takes {', '.join(SIDES)}, separated by commas")
    if not shutil.which(options.terrace):
        parser.error(f"{options.terrace} is not a program: build it (cmake --preset release && cmake --build --preset release), or give "
                     "--terrace; it also draws the first weights of all sides")
    return options


def setting(dtype, options, folder):
    """All settings of a side. The rivals read them as a JSON file."""
    return {**MODEL, "layers": options.layers, "batch": options.tokens // MODEL["seq"], "threads": options.threads, "dtype": dtype,
            "steps": options.steps, "recompute": options.recompute, "adamw": ADAMW, "weights": str(folder / "first.safetensors"),
            "text": str(folder / "text")}


def text(batch):
    """A text on which terrace trains exactly `batch` sequences: it holds out the last twentieth, at least one sequence."""
    wanted, held_out = batch * MODEL["seq"] + 1, MODEL["seq"] + 1
    length = wanted + held_out
    while length - max(held_out, length // 20) < wanted:
        length += 1
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(500)]
    return " ".join(draw.choices(words, k=length))[:length]


def round_to_bf16(file):
    """Truncates every fp32 number of a safetensors file to bf16, so that a side that starts from bf16 starts from the same weights."""
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    for low in (begin, begin + 1):
        data[low::4] = bytes(len(range(low, len(data), 4)))
    file.write_bytes(data)


def prepare(options, folder, names):
    """Makes the text, the first weights (terrace draws them; one step with a learning rate that changes none), the machine profile for
    terrace's plans, and DeepSpeed's libraries, which DeepSpeed would otherwise build inside its first turn."""
    first = setting("fp32", options, folder)
    pathlib.Path(first["text"]).write_text(text(first["batch"]), encoding="ascii")
    command = terrace_flags({**first, "steps": 1, "adamw": {**ADAMW, "lr": 1e-30}}, options.terrace)
    command += ["--save", first["weights"], "--out-dir", folder / "draw", "--assumed-costs", *memory("unlimited")]
    run(command, terrace_environment(folder))
    round_to_bf16(pathlib.Path(first["weights"]))
    if "terrace-disk" in names or "terrace-memory" in names:
        run([options.terrace, "doctor", "--measure", "--nvme-path", folder], terrace_environment(folder))
    if "zero-infinity" in names:
        run([PYTHON, "-c", BUILD_OPS], rival_environment(first, folder, "plain"))


def run(command, env):
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def memory(budget):
    return ["--device-memory", budget, "--host-memory", budget]


def terrace_flags(of, program):
    adamw = of["adamw"]
    flags = {"model": "llama", "layers": of["layers"], "hidden": of["hidden"], "heads": of["heads"], "ffn": of["ffn"], "vocab": of["vocab"],
             "seq-len": of["seq"], "batch-size": of["batch"], "threads": of["threads"], "dtype": of["dtype"], "steps": of["steps"],
             "data": of["text"], "lr": adamw["lr"], "min-lr": adamw["lr"], "lr-schedule": "constant", "warmup": 0, "beta1": adamw["betas"][0],
             "beta2": adamw["betas"][1], "eps": adamw["eps"], "weight-decay": adamw["decay"], "grad-clip": adamw["clip"],
             "eval-batches": 0, "durability": "none"}  # because the rivals commit nothing
    return [program, "train", *(word for key, value in flags.items() for word in ("--" + key, value))]


def terrace_command(name, of, program, folder):
    command = [*terrace_flags(of, program), "--init-from", of["weights"], "--out-dir", folder / "run", *memory(BUDGETS[name])]
    command += ["--nvme-path", folder / "disk"] if name == "terrace-disk" else []
    return command, folder / "run" / "metrics.jsonl"


def rival_command(name, of, folder):
    steps_file, file = folder / "steps.jsonl", folder / "setting.json"
    file.write_text(json.dumps({**of, "steps_file": str(steps_file), "disk": str(folder / "disk")}), encoding="utf-8")
    script, *rest = SCRIPTS[name]
    return [PYTHON, "-B", HERE / "rivals" / script, file, *rest], steps_file


def inherited():
    """This process's environment without settings of malloc, because --malloc sets them."""
    return {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}


def terrace_environment(folder):
    """The environment of terrace, with the machine profile from prepare(), not an older one."""
    return {**inherited(), "XDG_CACHE_HOME": str(folder / "cache")}


def rival_environment(of, folder, malloc):
    with socket.socket() as probe:  # a free port for DeepSpeed's process group of one
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = str(of["threads"])
    # The build of DeepSpeed's libraries calls ninja, which is beside Python in a virtual environment.
    path = f"{pathlib.Path(shutil.which(PYTHON) or PYTHON).parent}:{os.environ.get('PATH', '')}"
    return {**inherited(), "PATH": path, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "MASTER_PORT": str(port),
            "DS_ACCELERATOR": "cpu", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", **(KEPT if malloc == "kept" else {})}


def absent(name):
    """The reason why a side cannot run here; empty if it can."""
    if name in BUDGETS:
        return ""
    probe = subprocess.run([PYTHON, "-c", f"import {MODULES[name]}"], capture_output=True, text=True, check=False,
                           env={**os.environ, "DS_ACCELERATOR": "cpu"})
    return "" if probe.returncode == 0 else f"{PYTHON} cannot import {MODULES[name]}; set PYTHON to one that can"


def versions(program):
    """A line that names the programs and the processor."""
    names = [run([program, "--version"], None).strip()]
    for module, title in (("torch", "PyTorch"), ("deepspeed", "DeepSpeed")):
        code = f"import importlib.metadata; print('{title}', importlib.metadata.version('{module}'))"
        found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
        names.append(found.stdout.strip() if found.returncode == 0 else f"{title} is not installed")
    models = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return "; ".join(names + [line.split(":")[1].strip() for line in models[:1]])
