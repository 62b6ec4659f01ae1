"""bench/gpu.sh speed|size|rivals: the acceptance tests on one GPU, stage by stage, the most important first.

Every stage has its own deadline; the JSON is rewritten after each. With --small everything is tiny and runs on the CPU device or
on any GPU within a minute: a rehearsal that proves every command line. With --plan runs are only planned, for this machine or
one that --machine-profile describes.
"""

import argparse
import dataclasses
import pathlib
import shutil
import signal
import sys

import models
from programs import run_programs
from setting import GIB, Setting, bytes_of, measured, mebibytes
from stages import Deadline, Failed, Skipped, Stages, run

DATASHEET_FLOP_S = 989.4e12  # bf16, of an H100 or H200 with SXM
OFFLOADED = ["--recipe", "split", "--dtype", "bf16"]


def tail(text, lines=3):
    return text.strip().splitlines()[-lines:]


def kernels(s, deadline):
    """The device contract and every kernel on the real GPU; a rehearsal without one lists the kernels' tests."""
    on_gpu = s.device != "cpu"
    words = {name: [] if on_gpu else ["--gtest_list_tests"] for name in ("gpu_math_test", "gpu_kernels_test", "gpu_layers_test")}
    return run_programs(s, deadline, {"core_devices_test": [f"--gtest_filter=*/{'gpu' if on_gpu else 'cpu'}"], **words},
                        {"gpu_math_test": 2, "gpu_layers_test": 6} if on_gpu else {})


# Head sizes that attention on tensor cores supports, grouped queries, and a sequence length that is not round.
BITS_MODELS = {"head 64": models.HEAD_64, "head 128, 521 tokens": models.HEAD_128, "head 16": models.TINY}


def bitwise(s, deadline):
    """Trains models under every kind of budget, one of them twice: weights and losses must be the same. Records which attention kernel each used."""
    found, differing = {}, []
    for which, model in BITS_MODELS.items():
        limit = f"{model.device_mebibytes}MiB"
        ways = {"resident": [], "again": [], "offloaded": ["--device-memory", limit, "--order", "vertical"],
                "recomputed": ["--device-memory", limit, "--recompute", "layer", "--activations", "offload"],
                "in parts": ["--recompute", "2", "--activations", "2", "--order", "vertical", "--group", "2"],
                "on disk": ["--device-memory", limit, "--host-memory", limit, "--nvme-path", s.disk_folder()]}
        if s.small:  # a rehearsal only checks the commands: one of each kind is enough
            ways = {name: ways[name] for name in ("resident", "again", "offloaded", "on disk")}
        for dtype in ("bf16",) if s.small else ("bf16", "fp32"):
            runs, row = [], found.setdefault(f"{which}, {dtype}", {})
            for name, flags in ways.items():
                try:
                    _, steps, result = s.train(deadline, model, "--dtype", dtype, "--assumed-costs", *flags, batch=2, accumulation=4, steps=3)
                except Failed as why:  # the other budgets still run
                    row[name] = str(why)[-700:]
                    differing.append(f"{which}, {dtype}, {name} failed")
                    continue
                row[name] = result.get("weights_xxh64")
                if name in ("offloaded", "on disk") and not s.plans_only and not steps[-1]["offload"]["h2d_bytes"]:
                    differing.append(f"{which}, {dtype}, {name} moved nothing")
                row["attention"] = [line for line in result.get("algorithms", []) if line.startswith("attention")]
                runs.append((row[name], [step["loss"] for step in steps]))
                if runs[-1] != runs[0]:
                    differing.append(f"{which}, {dtype}, {name} differs")
                deadline.keep(found)
    if differing:
        raise Failed("; ".join(differing))
    return found


def profile(s, deadline):
    s.demand_here()
    name = "machine" + ("" if s.device == "cpu" else "-" + s.device.replace(":", "-")) + ".json"
    known = (s.scratch / "cache/terrace" / name).exists()  # an earlier call has measured it
    return tail(s.terrace(deadline, "doctor", *([] if known else ["--measure"]), "--device", s.device, "--nvme-path", s.disk_folder()), 40)


def pcie(s, deadline):
    s.demand_here()
    if s.device == "cpu":
        raise Skipped("the CPU device has no link")
    size = "64MiB" if s.small else "1GiB"
    return s.terrace(deadline, "bench", "pcie", "--gpu", s.device.split(":")[1], "--size", size, "--json",
                     *(["--disk", s.disk] if s.disk else []))


def peak(s, deadline):
    told = s.python(deadline, "matrix_peak.py", s.device, 0.2 if s.small else 10, 256 if s.small else 8192)
    s.matrix_peak = told["sustained_flop_s"]
    return told


def rival(s, deadline, way, model, batch, accumulation, steps):
    return s.python(deadline, "llama_pytorch.py", way, s.device, steps, batch, accumulation, model.layers, model.hidden, model.heads,
                    model.kv_heads, model.ffn, model.vocab, model.seq, int(model.tied), s.disk_folder())


def beside(s, deadline, ours, theirs, turns=2):
    """Runs both, alternately; if the rival is missing, runs only ours."""
    told = {"terrace": [], "rival": []}
    for _ in range(1 if s.small or s.plans_only else turns):
        try:
            told["terrace"].append(ours())
        except Failed as why:  # what an earlier turn has measured is kept
            if not told["terrace"]:
                raise
            told["cut_short"] = str(why)[-2000:]
            break
        deadline.keep(told)
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


def resident(s, deadline, model, batch):
    """32k tokens per step, everything on the GPU, compared with PyTorch compiled by layer; weights, gradients and states in bf16."""
    model = s.model(model)
    accumulation = max(1, (256 if s.small else 32768) // (batch * model.seq))

    def ours():
        plan, steps, result = s.train(deadline, model, "--dtype", "bf16", "--recipe", "all-bf16", batch=batch, accumulation=accumulation,
                                      steps=4 if s.small else 8)
        told = measured(plan, steps, model, batch * accumulation * model.seq, result)
        if "model_flop_s" in told:
            told["of_datasheet"] = told["model_flop_s"] / DATASHEET_FLOP_S
            if s.matrix_peak:
                told["of_matrix_peak"] = told["model_flop_s"] / s.matrix_peak
        return told

    return beside(s, deadline, ours, lambda: rival(s, deadline, "compiled", model, batch, accumulation, 4 if s.small else 8))


def fitted(s, model, limit, tokens):
    """The model with as many of its layers as fit in both the resident run and the offloaded one; the limit in proportion; the reason."""
    state, there = 16, s.there  # bytes per parameter, with split master weights and fp32 gradients
    fits = lambda m, device: (state * m.parameters() < 0.9 * there["device"] and  # noqa: E731
                              state * m.parameters() + 2 * tokens * m.hidden * m.layers < 0.95 * (device + there["host"]))
    whole, device = model, limit
    while not fits(model, device) and model.layers > 1:
        model = dataclasses.replace(model, layers=model.layers - 1)
        device = limit * model.parameters() // whole.parameters()
    if model == whole:
        return model, limit, None
    return model, device, (f"{model.layers} of {whole.layers} layers, and the limit in proportion: the resident run has {mebibytes(there['device'])} "
                           f"of device memory, the offloaded one {mebibytes(there['host'])} of the host's")


def tax(s, deadline, model, memory, tokens, clip, disk=False):
    """Compares the offloaded run with a resident one with the same recomputation and the same micro-batches."""
    why = None
    if s.small:
        model, tokens, limit = s.model(model), 256, 1 << 20
    else:
        model, limit, why = fitted(s, model, bytes_of(memory), tokens)
    accumulation = max(1, tokens // model.seq)
    flags = [*OFFLOADED, "--grad-clip", clip]
    steps = 3
    limits = ["--device-memory", mebibytes(limit), *(s.disk_flags(host="8GiB") if disk else [])]
    plan, offloaded, result = s.train(deadline, model, *flags, *limits, accumulation=accumulation, steps=steps)
    told = {"layers": model.layers, "device_memory": limit, "chosen_because": why,
            "offloaded": measured(plan, offloaded, model, accumulation * model.seq, result)}
    if plan.get("step_time_s"):
        told["bound"] = plan["floor_s"] / plan["step_time_s"]
    deadline.keep(told)
    if disk:
        return told
    same = ["--recompute", plan["choice"]["recompute"], "--order", plan["choice"]["order"], "--group", plan["choice"]["group"]]
    try:
        plan, whole, result = s.train(deadline, model, *flags, *same, accumulation=accumulation, steps=steps)
    except Failed as error:  # what the offloaded run has measured is kept
        return told | {"resident_failed": str(error)[-2000:]}
    told["resident"] = measured(plan, whole, model, accumulation * model.seq, result)
    if "tokens_s" in told["resident"] and "tokens_s" in told["offloaded"]:
        told["share"] = told["offloaded"]["tokens_s"] / told["resident"]["tokens_s"]
    return told


def sanitizer(s, deadline):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if s.device == "cpu" or not pathlib.Path(program).exists():
        raise Skipped("there is no GPU" if s.device == "cpu" else "compute-sanitizer is not installed")
    return tail(run([program, "--error-exitcode", "1", s.test("gpu_kernels_test"), "--gtest_brief=1"], deadline, s.environment,
                    s.logs), 8)


def machine(s):
    disk = shutil.disk_usage(s.disk_folder())
    return {"device": s.device, "disk_free_bytes": disk.free, "small": s.small,
            "tiers_bytes": s.there, "elsewhere": bool(s.elsewhere)}


STARTS_S = 60  # what a run of the largest sizes may take besides its steps: planning, memory, first weights


def size(s, deadline, ladder, state, recipe, disk):
    """Five steps on one repeated batch: the loss must fall. Uses the largest model of `ladder` (billions of parameters, `state` bytes each) that
    fits here, that the planner accepts, and whose planned time suffices. Records why larger ones were passed over."""
    told = {**machine(s), "passed_over": []}
    room = 0.9 * sum(s.there[tier] for tier in ("device", "host", "disk") if disk or tier != "disk")
    flags = ["--dtype", "bf16", "--assumed-costs", "--lr", "1e-3", "--lr-schedule", "constant", "--recipe", recipe, "--grad-clip", 0,
             *(["--device-memory", "1MiB"] if s.small else []), *(s.disk_flags() if disk else [])]
    for billions in ladder:
        model = models.of_size(billions, s.small)
        need = state * model.parameters()
        if need > room:
            told["passed_over"].append(f"{billions}B: {need / GIB:.0f} GiB of state, and there is room for {room / GIB:.0f}")
            continue
        run_it = {"steps": 5, "sequences": 1}
        try:
            plan, *_ = s.train(Deadline(deadline.left() / 3), model, *flags, plan_only=True, **run_it)
            ends = 5 * plan["step_time_s"] + (0 if s.small else STARTS_S)
            if ends > deadline.left() and not s.plans_only:
                told["passed_over"].append(f"{billions}B: would end in {ends:.0f} s, and {deadline.left():.0f} are left")
                continue
            told["planned"] = {"billions": billions, "step_s": plan["step_time_s"], "link": plan.get("link")}
            deadline.keep(told)
            steps, result = [], {}
            if not s.plans_only:
                plan, steps, result = s.train(deadline, model, *flags, **run_it)
        except Failed as error:
            told["passed_over"].append(f"{billions}B: {str(error)[-700:]}")
            deadline.keep(told)
            continue
        told |= {**measured(plan, steps, model, model.seq, result), "layers": model.layers}
        if steps:
            told["loss_fell"] = steps[-1]["loss"] < steps[0]["loss"]
            if not told["loss_fell"]:
                raise Failed(f"the loss did not fall: {told['losses']}")
        return told
    raise Failed(f"no size of {ladder}: {told['passed_over']}")


def offloaded_beside(s, deadline, way):
    model = s.model(models.LLAMA_3B)
    batch, accumulation = (1, 4) if s.small else (4, 2)
    limit = ["--device-memory", "1MiB" if s.small else "24GiB", *(s.disk_flags(host="16GiB") if way == "zero-infinity" else [])]

    def ours():
        plan, steps, result = s.train(deadline, model, *OFFLOADED, *limit, batch=batch, accumulation=accumulation, steps=4)
        return measured(plan, steps, model, batch * accumulation * model.seq, result)

    return beside(s, deadline, ours, lambda: rival(s, deadline, way, model, batch, accumulation, 4))


# Name, seconds that it needs at least, seconds that it may take, function.
SPEED = [
    ("machine profile", 10, 80, profile),
    ("bits", 10, 120, bitwise),
    ("kernels", 10, 130, kernels),
    ("matrix peak, 10 s", 12, 40, peak),
    ("8B resident", 60, 150, lambda s, d: resident(s, d, models.LLAMA_8B, 1)),
    ("8B, 24 GiB, 32k tokens", 60, 120, lambda s, d: tax(s, d, models.LLAMA_8B, "24GiB", 32768, 0)),
    ("copies", 20, 70, pcie),
    ("1B resident", 30, 100, lambda s, d: resident(s, d, models.LLAMA_1B, 4)),
    ("8B, 24 GiB, 64k tokens, clipped", 60, 120, lambda s, d: tax(s, d, models.LLAMA_8B, "24GiB", 65536, 1)),
    ("8B, 64 GiB, 128k tokens, clipped", 90, 150, lambda s, d: tax(s, d, models.LLAMA_8B, "64GiB", 131072, 1)),
    ("sanitizer", 20, 120, sanitizer),
]
SIZE = [
    ("machine profile", 10, 80, profile),
    ("fp32 states", 60, 240, lambda s, d: size(s, d, [20, 18, 16, 14], 12, "split", True)),
    ("small states", 60, 220, lambda s, d: size(s, d, [45, 40, 36, 30], 5, "split24-8bit", True)),
    ("fp32 states without disk", 60, 150, lambda s, d: size(s, d, [18, 16, 14, 12], 12, "split", False)),
    ("1B, part of the state on disk", 30, 120, lambda s, d: tax(s, d, models.LLAMA_1B, "8GiB", 32768, 0, disk=True)),
]
RIVALS = [
    ("3B beside FSDP2 with CPU offload", 40, 200, lambda s, d: offloaded_beside(s, d, "fsdp-offload")),
    ("3B beside ZeRO-Offload", 40, 200, lambda s, d: offloaded_beside(s, d, "zero-offload")),
    ("3B beside ZeRO-Infinity", 40, 150, lambda s, d: offloaded_beside(s, d, "zero-infinity")),
]
# The stages, and the seconds for all of them: with the start of the machine, the three calls stay within half an hour.
CALLS = {"speed": (SPEED, 560), "size": (SIZE, 560), "rivals": (RIVALS, 420)}


def arguments(words=None):
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--folder", default="build/folder", help="of cmake --install … --component folder")
    parser.add_argument("--tests", help="where the test programs are; else FOLDER/tests")
    parser.add_argument("--scratch", default="build/gpu-bench", help="for runs; emptied at the end")
    parser.add_argument("--disk", help="a folder on the disk of the disk tier; else in the scratch folder")
    parser.add_argument("--out", default=".", help="the JSON, or a folder that is there, for gpu-CALL.json")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, help="seconds, for all stages together; else 560, of rivals 420")
    parser.add_argument("--patience", type=float, default=1, help="the budget and all limits times this, for slow builds")
    parser.add_argument("--small", action="store_true", help="tiny models, a few seconds a stage")
    parser.add_argument("--plan", action="store_true", help="plan the runs and train nothing")
    parser.add_argument("--machine-profile", help="with --plan: of another machine, whose tiers the next three say")
    parser.add_argument("--device-memory", default="139GiB")
    parser.add_argument("--host-memory", default="200GiB")
    parser.add_argument("--disk-space", default="50GiB")
    parser.add_argument("--only", help="stages whose name contains this")
    options = parser.parse_args(words)
    if options.machine_profile and not options.plan:
        parser.error("--machine-profile describes another machine, on which nothing can be trained: give --plan, too")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that runs are ended and results are printed
    setting = Setting(options)
    chain, budget_s = CALLS[options.call]
    out = pathlib.Path(options.out)
    stages = Stages(options.call, out / f"gpu-{options.call}.json" if out.is_dir() else out, (options.budget or budget_s) * options.patience,
                    machine(setting))
    try:
        for name, needs, limit, work in chain:
            if not options.only or options.only in name:
                stages.run(name, 1 if options.small else needs, limit * options.patience, lambda deadline, work=work: work(setting, deadline))
    finally:
        for leftover in setting.scratch.iterdir():  # keeps what was measured about the machine, for the next call
            if leftover.name != "cache":
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    sys.exit(1 if stages.failed() else 0)


if __name__ == "__main__":
    main()
