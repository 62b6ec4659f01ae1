"""The rows of the acceptance on one GPU, the most valuable first: what each runs, its deadline, and what it decides.

A row's parts are functions of a Part that return figures; `judge` compares the figures of all parts.
"""

import dataclasses
import json
import typing

import models
from models import LLAMA_8B
from programs import tests
from record import Cut, Failed

BUDGET_S = 580  # for the table
OFFLOADED = ["--dtype", "bf16", "--recipe", "split"]
RESIDENT = ["--dtype", "bf16", "--recipe", "all-bf16"]


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    check: str
    seconds: int
    decides: str
    parts: typing.Callable  # of the setting: name -> part
    judge: typing.Callable = lambda figures: {}
    leaves_out: str = ""


def run(s, model, *flags, **how):
    """A part that trains."""
    return lambda part: s.train(part, model, *flags, **how)


def profile(s):
    def measure(part):
        s.demand_here()
        return {"lines": s.terrace(part, "doctor", "--measure", "--device", s.device, "--nvme-path", s.disk).splitlines()}

    return {"nvidia-smi": lambda part: {"lines": part.run([s.find("nvidia-smi")]).splitlines()}, "doctor": measure}


def mends(s):
    return {"products": tests(s, "gpu_math_test", "MatmulTest.*:*BitsTest.*-MatmulTest.AllOnes*", parts=2),
            "packing": tests(s, "gpu_kernels_test", "PackingTest.*"),
            "adding": tests(s, "gpu_layers_test", "*AccumulatingAdds*", parts=4)}


def budgets(s):
    fp32 = ["--dtype", "fp32", "--assumed-costs"]
    limits, rows = {"no limit": [], "16 MiB": ["--device-memory", "16MiB"]}, {"auto": [], "2,048": ["--head-rows", 2048]}
    return {f"{head} head rows: {limit}": run(s, models.HEAD_128, *fp32, *rows[head], *limits[limit], batch=2, accumulation=4, steps=3)
            for head in rows for limit in limits}


MOVE = ("16 MiB", "offloaded", "on disk")


def same_bits(figures):
    """Parts are named MODEL: BUDGET. All runs of a model have the same weights and losses, and those of a small budget move something."""
    found, bad = {}, []
    for name, one in figures.items():
        if "weights" not in one:
            continue
        which, way = name.split(": ")
        bits = (one["weights"], one["losses"])
        if found.setdefault(which, bits) != bits:
            bad.append(f"{name} has other bits")
        if way in MOVE and not one["offload"]["h2d_bytes"]:
            bad.append(f"{name} moved nothing")
    if bad:
        raise Failed("; ".join(bad))
    return {which: weights for which, (weights, _) in found.items()}


def products(s):
    m = s.model(LLAMA_8B)
    width = m.hidden // m.heads * m.kv_heads
    matrices = [(m.hidden + 2 * width, m.hidden), (m.hidden, m.hidden), (2 * m.ffn, m.hidden), (m.hidden, m.ffn)]
    size = ["0.1", 1, 128] if s.small else [5, 3, 8192]
    return {"PyTorch": lambda part: s.python(part, "products.py", s.device, *size, m.seq, *(f"{out}x{inner}" for out, inner in matrices))}


def resident(s):
    short = dataclasses.replace(LLAMA_8B, seq=1024)
    return {"8B": run(s, LLAMA_8B, *RESIDENT), "attention: faster": run(s, LLAMA_8B, *RESIDENT, environment={"TERRACE_ATTENTION": "faster"}),
            "sequences of 1,024": run(s, short, *RESIDENT, batch=4)}


def waits(s):
    """Each run differs from the first in what its name says. They have little time, so layers are not timed first."""
    base = [*OFFLOADED, "--assumed-costs", "--device-memory", s.limit("8533MiB"), "--order", "vertical"]
    down, exact = ["--activations", "offload", "--recompute", "none"], ["--grad-clip", 0]
    flags = {"activations down": [*down, *exact], "recomputed": ["--recompute", "layer", *exact],
             "sgd without momentum": [*down, *exact, "--optimizer", "sgd", "--momentum", 0], "half of the updates on the device": [*down, *exact, "--update", 0.5],
             "6 threads": [*down, *exact, "--threads", 6], "clip 1": [*down, "--grad-clip", 1], "updates on the device": [*down, *exact, "--update", "device"]}
    model = dataclasses.replace(LLAMA_8B, layers=8)
    return {name: run(s, model, *base, *words, steps=3) for name, words in flags.items()}


def offloaded(s):
    model, limit = dataclasses.replace(LLAMA_8B, layers=16), ["--device-memory", s.limit("13890MiB")]
    flags = {"resident": ["--grad-clip", 0], "clip 0": ["--grad-clip", 0, *limit], "clip 1": ["--grad-clip", 1, *limit]}
    return {name: run(s, model, *OFFLOADED, *words, steps=3) for name, words in flags.items()}


def ratios(to):
    """Speeds as a share of one part's."""
    def judge(figures):
        speeds = {name: f["tokens_s"] for name, f in figures.items() if "tokens_s" in f}
        return {f"{name} ÷ {to}": speed / speeds[to] for name, speed in speeds.items() if name != to} if to in speeds else {}

    return judge


def rival(s, way, model, batch, accumulation, steps=5):
    """A part that trains the same model in PyTorch."""
    m, accumulation = s.model(model), min(accumulation, 4) if s.small else accumulation
    return lambda part: s.python(part, "llama_pytorch.py", way, s.device, steps, batch, accumulation, m.layers, m.hidden, m.heads, m.kv_heads, m.ffn,
                                 m.vocab, m.seq, int(m.tied), s.disk)


def pytorch(s):
    model = dataclasses.replace(LLAMA_8B, layers=24)
    return {"terrace": run(s, model, *RESIDENT, steps=5), "PyTorch": rival(s, "compiled", model, 1, 8)}


def link(s):
    def pcie(part):
        s.demand_gpu()
        words = ["bench", "pcie", "--gpu", s.device.split(":")[1], "--size", "64MiB" if s.small else "256MiB", "--runs", 3, "--json"]
        try:
            return json.loads(s.terrace(part, *words))
        except Cut as cut:  # it prints what it has
            return (json.loads(cut.out) if cut.out.strip() else {}) | {"cut": str(cut)}

    return {"bench pcie": pcie}


def sanitizer(s):
    def under(tool, program, chosen):
        def work(part):
            words = [s.find("compute-sanitizer"), "--tool", tool, "--error-exitcode", 1]
            return {"lines": part.run([*words, s.test(program), f"--gtest_filter={chosen}", "--gtest_brief=1"], s.environment).splitlines()[-3:]}

        return work

    attention = "AttentionTest.EqualsTheOracle:AttentionTest.NarrowGradients*"
    return {"memcheck": under("memcheck", "gpu_kernels_test", "PackingTest.*"), "synccheck": under("synccheck", "gpu_math_test", attention),
            "racecheck": under("racecheck", "gpu_math_test", attention)}


TABLE = [
    Row("profile", "`doctor --measure`, its profile kept; `nvidia-smi`", 25, "plans without a GPU afterwards; the room for the context", profile),
    Row("mends", "tests of products and bits, of packing, of adding gradients", 40, "whether four faults are mended", mends),
    Row("tails", "products of ones with inner dimensions of 11,528 and 57,608", 10, "whether a sum drops its last terms",
        lambda s: {"ones": tests(s, "gpu_math_test", "MatmulTest.AllOnes*")},
        leaves_out="sums that are split: nothing permits a split of these"),
    Row("budgets", "the first fault's model in fp32: 16 MiB and no limit, 2,048 head rows and auto", 25, "whether budgets change a bit", budgets,
        same_bits, "the same without any split: there is no switch; split sums are listed"),
    Row("products", "the 12 products of an 8B block in PyTorch, three runs each; the matrix peak", 20, "what a better algorithm would gain", products,
        leaves_out="16 proposals each: no program times them"),
    Row("resident", "8B resident; the faster attention; sequences of 1,024 in batches of 4", 125, "speed beside LLMQ at its shape", resident, ratios("8B")),
    Row("waits", "8 layers in 8,533 MiB, vertical: activations down; recomputed; sgd; half of the updates on the device; 6 threads; clip 1; all "
        "updates on the device", 100, "what causes waits", waits, ratios("activations down")),
    Row("offloaded", "16 layers: resident by its own choice; in 13,890 MiB with clip 0 and 1", 95, "the share of the speed that offloading keeps", offloaded,
        ratios("resident")),
    Row("pytorch", "24 layers: terrace, PyTorch compiled", 70, "the comparison with PyTorch", pytorch, ratios("PyTorch")),
    Row("link", "copies both ways, beside an update, beside a product", 20, "shares that the planner assumes", link),
    Row("sanitizer", "memcheck of packing; synccheck and racecheck of small attention", 50, "no access outside tensors, no races", sanitizer),
]
