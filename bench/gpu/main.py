"""bench/gpu.sh speed|size|rivals: the acceptance on one GPU, stage by stage, the most valuable first.

Every stage has its own deadline; the JSON is rewritten after each. With --small everything is tiny and runs on the CPU device or
on any GPU within a minute: a rehearsal that proves every command line. With --plan runs are only planned, for this machine or
one that --machine-profile describes.
"""

import argparse
import pathlib
import shutil
import sys

import models
from setting import Setting, measured
from stages import Failed, Skipped, Stages, run

OFFLOADED = ["--recipe", "split", "--dtype", "bf16"]


def tail(text, lines=3):
    return text.strip().splitlines()[-lines:]


def contract(s, deadline):
    """The device contract on the real GPU."""
    return tail(run([s.test("core_devices_test"), f"--gtest_filter={'*/cpu' if s.device == 'cpu' else '*/gpu'}", "--gtest_brief=1"],
                    deadline, s.environment))


def kernels(s, deadline):
    gpu = s.device != "cpu"
    found = {}
    for name in ("gpu_math_test", "gpu_kernels_test", "gpu_layers_test"):
        found[name] = tail(run([s.test(name), "--gtest_brief=1"] + ([] if gpu else ["--gtest_list_tests"]), deadline, s.environment))
        if gpu and any("SKIPPED" in line for line in found[name]):
            raise Failed(f"{name}: {found[name]}")
    return found


def bitwise(s, deadline):
    """One model under every kind of budget: the same weights, and twice the same."""
    model = models.TINY
    disk = ["--nvme-path", s.disk or s.scratch / "disk"]
    (s.disk or s.scratch / "disk").mkdir(parents=True, exist_ok=True)
    ways = {"resident": [], "again": [], "offloaded": ["--device-memory", "2MiB", "--order", "vertical"],
            "recomputed": ["--device-memory", "2MiB", "--recompute", "layer", "--activations", "offload"],
            "in parts": ["--recompute", "2", "--activations", "2", "--order", "vertical", "--group", "2"],
            "on disk": ["--device-memory", "2MiB", "--host-memory", "2MiB", *disk]}
    hashes = {}
    for dtype in ("bf16", "fp32"):
        for name, flags in ways.items():
            _, steps, result = s.train(deadline, model, "--dtype", dtype, "--assumed-costs", *flags, batch=2, accumulation=4)
            hashes[f"{dtype}, {name}"] = (result["weights_xxh64"], [step["loss"] for step in steps]) if result else None
        of_dtype = [v for k, v in hashes.items() if k.startswith(dtype)]
        if any(v != of_dtype[0] for v in of_dtype):
            raise Failed(f"these differ: {hashes}")
    return {name: value and value[0] for name, value in hashes.items()}


def profile(s, deadline):
    s.demand_here()
    return tail(s.terrace(deadline, "doctor", "--measure", "--device", s.device, *(["--nvme-path", s.disk] if s.disk else [])), 40)


def pcie(s, deadline):
    s.demand_here()
    if s.device == "cpu":
        raise Skipped("the CPU device has no link")
    size = "64MiB" if s.small else "1GiB"
    return s.terrace(deadline, "bench", "pcie", "--gpu", s.device.split(":")[1], "--size", size, "--json",
                     *(["--disk", s.disk] if s.disk else []))


def peak(s, deadline):
    return s.python(deadline, "matrix_peak.py", s.device, 0.2 if s.small else 10, 256 if s.small else 8192)


def rival(s, deadline, way, model, batch, accumulation, steps):
    folder = s.disk or s.scratch / "disk"
    return s.python(deadline, "llama_pytorch.py", way, s.device, steps, batch, accumulation, model.layers, model.hidden, model.heads,
                    model.kv_heads, model.ffn, model.vocab, model.seq, int(model.tied), folder)


def beside(s, deadline, ours, theirs, turns=2):
    """Both, alternately; a rival that is missing leaves ours alone."""
    told = {"terrace": [], "rival": []}
    for _ in range(1 if s.small or s.plans_only else turns):
        try:
            told["terrace"].append(ours())
        except Failed as why:  # what an earlier turn has measured is kept
            if not told["terrace"]:
                raise
            told["cut_short"] = str(why)[-2000:]
            break
        if s.plans_only:
            break
        try:
            told["rival"].append(theirs())
        except (Skipped, Failed) as why:
            told["rival_absent"] = str(why)[-2000:]
    if told["rival"] and "tokens_s" in told["terrace"][0]:
        speeds = [max(r["tokens_s"] for r in told[side]) for side in ("terrace", "rival")]
        told["times_the_rival"] = speeds[0] / speeds[1]
    return told


def resident(s, deadline, model, batch, recipe):
    """32k tokens a step, everything on the GPU, beside PyTorch compiled by layer."""
    model = s.model(model)
    accumulation = max(1, (256 if s.small else 32768) // (batch * model.seq))

    def ours():
        plan, steps, _ = s.train(deadline, model, "--dtype", "bf16", "--recipe", recipe, batch=batch, accumulation=accumulation,
                                 steps=4 if s.small else 8)
        return measured(plan, steps, model, batch * accumulation * model.seq)

    return beside(s, deadline, ours, lambda: rival(s, deadline, "compiled", model, batch, accumulation, 4 if s.small else 8))


def tax(s, deadline, model, memory, tokens, clip, disk=False):
    """The offloaded run, and the resident one with the same recomputation and the same micro-batches."""
    model = s.model(model)
    accumulation = max(1, (256 if s.small else tokens) // model.seq)
    flags = [*OFFLOADED, "--grad-clip", clip]
    steps = 3 if s.small else 4
    limit = ["--device-memory", "1MiB" if s.small else memory]
    if disk:
        folder = s.disk or s.scratch / "disk"
        folder.mkdir(parents=True, exist_ok=True)
        limit += ["--nvme-path", folder, "--host-memory", "2MiB" if s.small else "64GiB"]
    plan, offloaded, _ = s.train(deadline, model, *flags, *limit, accumulation=accumulation, steps=steps)
    told = {"offloaded": measured(plan, offloaded, model, accumulation * model.seq)}
    if plan.get("step_time_s"):
        told["bound"] = plan["floor_s"] / plan["step_time_s"]
    if disk:
        return told
    same = ["--recompute", plan["choice"]["recompute"], "--order", plan["choice"]["order"], "--group", plan["choice"]["group"]]
    try:
        plan, whole, _ = s.train(deadline, model, *flags, *same, accumulation=accumulation, steps=steps)
    except Failed as why:  # what the offloaded run has shown is kept
        return told | {"resident_failed": str(why)[-2000:]}
    told["resident"] = measured(plan, whole, model, accumulation * model.seq)
    if "tokens_s" in told["resident"]:
        told["share"] = told["offloaded"]["tokens_s"] / told["resident"]["tokens_s"]
    return told


def sanitizer(s, deadline):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if s.device == "cpu" or not pathlib.Path(program).exists():
        raise Skipped("there is no GPU" if s.device == "cpu" else "compute-sanitizer is not installed")
    return tail(run([program, "--error-exitcode", "1", s.test("gpu_kernels_test"), "--gtest_brief=1"], deadline, s.environment), 8)


def machine(s):
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in pathlib.Path("/proc/meminfo").read_text().splitlines()
              if line.split()[1].isdigit()}
    disk = shutil.disk_usage(s.disk or s.scratch)
    return {"device": s.device, "free_ram_bytes": memory["MemAvailable"], "disk_free_bytes": disk.free, "small": s.small}


def size(s, deadline, billions, flags, disk):
    """Five steps on one repeated batch: the loss falls. Planned first, so that what does not fit is refused with its bytes."""
    model = models.of_size(billions, s.small)
    limit = ["--device-memory", "1MiB"] if s.small else []
    if disk:
        folder = s.disk or s.scratch / "disk"
        folder.mkdir(parents=True, exist_ok=True)
        limit += ["--nvme-path", folder]
    plan, steps, _ = s.train(deadline, model, "--dtype", "bf16", "--assumed-costs", "--lr", "1e-3", "--lr-schedule", "constant", *flags,
                             *limit, steps=5, sequences=1)
    told = {**machine(s), **measured(plan, steps, model, model.seq), "layers": model.layers}
    if steps:
        told["loss_fell"] = steps[-1]["loss"] < steps[0]["loss"]
        if not told["loss_fell"]:
            raise Failed(f"the loss did not fall: {told['losses']}")
    return told


def offloaded_beside(s, deadline, way):
    model = s.model(models.LLAMA_3B)
    batch, accumulation = (1, 4) if s.small else (4, 2)
    limit = ["--device-memory", "1MiB" if s.small else "24GiB"]
    if way == "zero-infinity":
        folder = s.disk or s.scratch / "disk"
        folder.mkdir(parents=True, exist_ok=True)
        limit += ["--nvme-path", folder, "--host-memory", "2MiB" if s.small else "16GiB"]

    def ours():
        plan, steps, _ = s.train(deadline, model, *OFFLOADED, *limit, batch=batch, accumulation=accumulation, steps=4)
        return measured(plan, steps, model, batch * accumulation * model.seq)

    return beside(s, deadline, ours, lambda: rival(s, deadline, way, model, batch, accumulation, 4))


# name, seconds that it needs at least, seconds that it may take, what it does
SPEED = [
    ("machine profile", 10, 60, profile),
    ("bits", 5, 60, bitwise),
    ("device contract", 5, 40, contract),
    ("kernels", 5, 90, kernels),
    ("matrix peak, 10 s", 12, 40, peak),
    ("1B resident", 30, 100, lambda s, d: resident(s, d, models.LLAMA_1B, 4, "bf16")),
    ("8B resident", 60, 150, lambda s, d: resident(s, d, models.LLAMA_8B, 2, "bf16")),
    ("8B, 24 GiB, 32k tokens", 60, 110, lambda s, d: tax(s, d, models.LLAMA_8B, "24GiB", 32768, 0)),
    ("copies", 10, 40, pcie),
    ("8B, 24 GiB, 64k tokens, clipped", 60, 110, lambda s, d: tax(s, d, models.LLAMA_8B, "24GiB", 65536, 1)),
    ("8B, 64 GiB, 128k tokens, clipped", 90, 150, lambda s, d: tax(s, d, models.LLAMA_8B, "64GiB", 131072, 1)),
    ("sanitizer", 20, 120, sanitizer),
]
SIZE = [
    ("machine profile", 10, 60, profile),
    ("fp32 states without disk", 60, 200, lambda s, d: size(s, d, 14, ["--recipe", "split", "--grad-clip", "0"], False)),
    ("fp32 states, 20B", 60, 280, lambda s, d: size(s, d, 20, ["--recipe", "split", "--grad-clip", "0"], True)),
    ("small states, 40B", 60, 280, lambda s, d: size(s, d, 40, ["--recipe", "split24-8bit", "--grad-clip", "0"], True)),
    ("1B, part of the state on disk", 30, 120, lambda s, d: tax(s, d, models.LLAMA_1B, "8GiB", 32768, 0, disk=True)),
]
RIVALS = [
    ("3B beside FSDP2 with CPU offload", 40, 200, lambda s, d: offloaded_beside(s, d, "fsdp-offload")),
    ("3B beside ZeRO-Offload", 40, 200, lambda s, d: offloaded_beside(s, d, "zero-offload")),
    ("3B beside ZeRO-Infinity", 40, 150, lambda s, d: offloaded_beside(s, d, "zero-infinity")),
]
CALLS = {"speed": SPEED, "size": SIZE, "rivals": RIVALS}


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--folder", default="build/folder", help="of cmake --install … --component folder")
    parser.add_argument("--tests", help="where the test programs are; else FOLDER/tests")
    parser.add_argument("--scratch", default="build/gpu-bench", help="for runs; emptied at the end")
    parser.add_argument("--disk", help="a folder on the disk of the disk tier; else in the scratch folder")
    parser.add_argument("--out", help="the JSON; else gpu-CALL.json")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=560, help="seconds, for all stages together")
    parser.add_argument("--patience", type=float, default=1, help="the budget and all limits times this, for slow builds")
    parser.add_argument("--small", action="store_true", help="tiny models, a few seconds a stage")
    parser.add_argument("--plan", action="store_true", help="plan the runs and train nothing")
    parser.add_argument("--machine-profile", help="with --plan: of another machine, whose memory the next two say")
    parser.add_argument("--device-memory", default="139GiB")
    parser.add_argument("--host-memory", default="200GiB")
    parser.add_argument("--only", help="stages whose name contains this")
    options = parser.parse_args()
    if options.machine_profile and not options.plan:
        parser.error("--machine-profile describes another machine, on which nothing can be trained: give --plan, too")

    setting = Setting(options)
    setting.scratch.mkdir(parents=True, exist_ok=True)
    stages = Stages(options.call, options.out or f"gpu-{options.call}.json", options.budget * options.patience, machine(setting))
    try:
        for name, needs, limit, work in CALLS[options.call]:
            if not options.only or options.only in name:
                stages.run(name, 1 if options.small else needs, limit * options.patience, lambda deadline, work=work: work(setting, deadline))
    finally:
        shutil.rmtree(setting.scratch, ignore_errors=True)
    sys.exit(1 if stages.failed() else 0)


if __name__ == "__main__":
    main()
