"""Rows behind the table, which run only if `--only` names them."""

import re
import shutil

import models
from models import LLAMA_1B, LLAMA_3B
from programs import tests
from record import Cut, Failed, Part
from rows import OFFLOADED, Row, ratios, rival, run, same_bits
from setting import DISK_RESERVE

# Head sizes that attention on tensor cores supports, grouped queries, and a sequence length that is not round.
BITS_MODELS = {"head 64": models.HEAD_64, "head 128, 521 tokens": models.HEAD_128, "head 16": models.TINY}


def bits(s):
    parts = {}
    for which, model in BITS_MODELS.items():
        limit = f"{model.device_mebibytes}MiB"
        ways = {"resident": [], "again": [], "offloaded": ["--device-memory", limit, "--order", "vertical"],
                "recomputed": ["--device-memory", limit, "--recompute", "layer", "--activations", "offload"],
                "in parts": ["--recompute", 2, "--activations", 2, "--order", "vertical", "--group", 2],
                "on disk": ["--device-memory", limit, "--host-memory", limit, *s.disk_flags()]}
        for dtype in ("bf16", "fp32"):
            for way, flags in ways.items():
                parts[f"{which}, {dtype}: {way}"] = run(s, model, "--dtype", dtype, "--assumed-costs", *flags, batch=2, accumulation=4, steps=3)
    return parts


def kernels(s):
    names = {"core_devices_test": (f"*/{'cpu' if s.device == 'cpu' else 'gpu'}", 1), "gpu_math_test": ("*", 2), "gpu_kernels_test": ("*", 1),
             "gpu_layers_test": ("*", 6)}
    return {name: tests(s, name, chosen, parts) for name, (chosen, parts) in names.items()}


def on_disk(s):
    limits = ["--device-memory", s.limit("8GiB"), "--host-memory", "2MiB" if s.small else "8GiB"]
    return {"1B": run(s, LLAMA_1B, *OFFLOADED, "--grad-clip", 0, *limits, *s.disk_flags(), steps=3)}


GIB, UNITS = 1 << 30, {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
HOST_RESERVE, DEVICE_RESERVE = 8 * GIB, 4 * GIB  # for the program, the driver and the system; for CUDA and its libraries
STARTS_S = 60  # what a run of the largest sizes may take besides its steps: planning, memory, first weights


def bytes_of(text):
    """ "139GiB" or "3.00 GiB"."""
    number, unit = re.fullmatch(r"([\d.]+) ?([MGT]iB)", text).groups()
    return int(float(number) * UNITS[unit])


def tiers(s, part):
    """The bytes of each tier that a run may take: here, or on the machine that is planned for."""
    disk = bytes_of(s.disk_flags()[-1])
    if s.planned:
        return {"device": bytes_of(s.device_memory), "host": bytes_of(s.host_memory), "disk": disk}
    told = s.terrace(part, "doctor", "--device", s.device)
    host = bytes_of(re.search(r" memory +([\d.]+ [MGT]iB) available", told)[1])
    gpu = re.search(rf"{s.device} [^,;]*, ([\d.]+ [MGT]iB)", told)
    return {"device": bytes_of(gpu[1]) - DEVICE_RESERVE if gpu else host // 2, "host": host - HOST_RESERVE, "disk": disk}


def size(s, ladder, state, recipe, disk):
    """Parts of one: five steps on one repeated batch, whose loss must fall. Takes the largest model of `ladder` (billions of parameters,
    `state` bytes each) that has room here, that the planner accepts, and whose planned time suffices."""
    def work(part):
        there = tiers(s, part)
        told = {"tiers_bytes": there, "passed_over": []}
        room = 0.9 * sum(there[tier] for tier in there if disk or tier != "disk")
        flags = ["--dtype", "bf16", "--assumed-costs", "--lr", "1e-3", "--lr-schedule", "constant", "--recipe", recipe, "--grad-clip", 0,
                 *(["--device-memory", "1MiB"] if s.small else []), *(s.disk_flags() if disk else [])]
        how = {"accumulation": 1, "steps": 5, "sequences": 1}
        for billions in ladder:
            model = models.of_size(billions)
            if (need := state * model.parameters()) > room and not s.small:
                told["passed_over"].append(f"{billions}B: {need / GIB:.0f} GiB of state, and there is room for {room / GIB:.0f}")
                continue
            try:
                planned = s.plan(Part(part.left() / 3, part.commands, part.logs, part.changed), s.model(model), *flags, **how)["step_time_s"]
                if not s.planned and not s.small and 5 * planned + STARTS_S > part.left():
                    told["passed_over"].append(f"{billions}B: would end in {5 * planned + STARTS_S:.0f} s, and {part.left():.0f} are left")
                    continue
            except (Cut, Failed) as why:
                told["passed_over"].append(f"{billions}B: {why}")
                continue
            told |= {"billions": billions, **s.train(part, model, *flags, **how)}
            losses = told.get("losses", [1, 0])
            return told | ({} if losses[-1] < losses[0] else {"error": f"the loss did not fall: {losses}"})
        return told | {"error": f"no size of {ladder} fits: {'; '.join(told['passed_over'])}"}

    return {recipe: work}


def beside(way):
    def parts(s):
        limits = ["--device-memory", s.limit("24GiB")]
        if way == "zero-infinity":
            limits += ["--host-memory", "2MiB" if s.small else "16GiB", *s.disk_flags()]
        return {"terrace": run(s, LLAMA_3B, *OFFLOADED, *limits, batch=4, accumulation=2), way: rival(s, way, LLAMA_3B, 4, 2, steps=4)}

    return parts


def start(s):
    """Parts that train two steps of a tiny model: with the code in the module, with PTX that the driver translates, and with the driver's
    cache of that translation. Attention's warpgroups have no PTX."""
    cache = s.runs / "ptx"

    def begins(dtype, translate, fresh):
        def work(part):
            s.demand_gpu()
            if fresh:
                shutil.rmtree(cache, ignore_errors=True)
            there = bytes_in(cache)
            how = {"CUDA_CACHE_PATH": str(cache), "TERRACE_ATTENTION_KERNEL": "warps"} | ({"CUDA_FORCE_PTX_JIT": "1"} if translate else {})
            told = s.train(part, models.TINY, "--dtype", dtype, "--assumed-costs", accumulation=1, steps=2, environment=how)
            return told | {"start_s": part.commands[-1]["seconds"], "translated_bytes": bytes_in(cache) - there}

        return work

    ways = {"code": (False, True), "PTX": (True, True), "PTX again": (True, False)}
    return {f"{dtype}: {way}": begins(dtype, *how) for dtype in ("bf16", "fp32") for way, how in ways.items()}


def bytes_in(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def translation(figures):
    """Seconds that the translation of each dtype's kernels takes, and a MiB of them."""
    told = {}
    for dtype in ("bf16", "fp32"):
        parts = [figures.get(f"{dtype}: {way}", {}) for way in ("code", "PTX", "PTX again")]
        if not all("start_s" in part and "error" not in part for part in parts):
            continue
        code, first, again = parts
        told[f"{dtype}: seconds to translate"] = first["start_s"] - code["start_s"]
        if again["translated_bytes"]:
            raise Failed(f"{dtype}: the driver's cache kept nothing: {again['translated_bytes']} bytes were translated again")
        if mebibytes := first["translated_bytes"] / (1 << 20):
            told[f"{dtype}: seconds a MiB"] = told[f"{dtype}: seconds to translate"] / mebibytes
    return told


MORE = [
    Row("bits", "three models in two dtypes: resident, again, offloaded, recomputed, in parts, on disk", 120, "whether budgets change a bit", bits,
        same_bits),
    Row("kernels", "all tests of devices, kernels and layers", 130, "whether all kernels are right", kernels),
    Row("disk", "1B with 8 GiB of device and host memory", 120, "speed with a disk tier", on_disk),
    Row("split", "the largest model with fp32 states", 240, "what fits", lambda s: size(s, [20, 18, 16, 14], 12, "split", True)),
    Row("8bit", "the largest model with small states", 220, "what fits", lambda s: size(s, [45, 40, 36, 30], 5, "split24-8bit", True)),
    Row("no-disk", "the largest model with fp32 states and no disk", 150, "what fits", lambda s: size(s, [18, 16, 14, 12], 12, "split", False)),
    *(Row(way, f"3B beside {name}", 200, "the comparison with PyTorch", beside(way), ratios(way))
      for way, name in {"fsdp-offload": "FSDP2 with CPU offload", "zero-offload": "ZeRO-Offload", "zero-infinity": "ZeRO-Infinity"}.items()),
    Row("start", "the start of a short run in two dtypes: with code for this GPU, with PTX, and with PTX translated before", 120,
        "what code for each kind of GPU saves", start, translation),
]
