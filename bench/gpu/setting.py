"""Where everything is that rows use, and how they train: for real, in small for a rehearsal, or only planned for another machine."""

import array
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import sys
import time

import models
from record import Cut, Failed, Missing

HERE = pathlib.Path(__file__).resolve().parent
DISK_RESERVE = 4 << 30  # stays free on the disk for other users
SPLIT = re.compile(r"\bsplit (?!0\b|1\b)\d")  # in the line of an algorithm that splits the sum


def cuda_libraries():
    """The folders of CUDA's libraries in PyTorch's wheels."""
    return [str(folder) for path in map(pathlib.Path, sys.path) for folder in sorted(path.glob("nvidia/*/lib"))]


class Setting:
    def __init__(self, options, out):
        self.device, self.small, self.out = options.device, options.small, out
        self.planned = ["--assumed-costs", "--machine-profile", pathlib.Path(options.plan).resolve()] if options.plan else None
        self.device_memory, self.host_memory, self.disk_memory = options.tiers.split(",")  # of the machine that is planned for
        self.folder = pathlib.Path(options.folder).resolve()
        self.tests = pathlib.Path(options.tests).resolve() if options.tests else self.folder / "tests"
        self.scratch = pathlib.Path(options.scratch).resolve()
        self.runs = self.scratch / "runs"  # emptied at both ends; the machine profile beside it stays for the next call
        self.clear()
        self.runs.mkdir(parents=True)
        self.disk = pathlib.Path(options.disk).resolve() if options.disk else self.runs / "disk"
        self.disk.mkdir(parents=True, exist_ok=True)
        libraries = cuda_libraries() + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p]
        self.environment = {"LD_LIBRARY_PATH": ":".join(libraries), "XDG_CACHE_HOME": str(self.scratch / "cache")}

    def clear(self):
        shutil.rmtree(self.runs, ignore_errors=True)

    def model(self, model):
        """In a rehearsal, a tiny one for each large one."""
        return models.TINY if self.small and model.parameters() > 10**8 else model

    def limit(self, size):
        """A memory limit, of which a tiny model needs less."""
        return "1MiB" if self.small else size

    def disk_flags(self):
        size = self.disk_memory if self.planned else f"{max(shutil.disk_usage(self.disk).free - DISK_RESERVE, 1 << 30) >> 20}MiB"
        return ["--nvme-path", self.disk, "--nvme-limit", size]

    def demand_here(self):
        if self.planned:
            raise Missing("runs are only planned")

    def demand_gpu(self):
        self.demand_here()
        if self.device == "cpu":
            raise Missing("the CPU device has no link and no GPU")

    def find(self, tool):
        """A program of NVIDIA's that need not be there."""
        self.demand_gpu()
        if found := shutil.which(tool):
            return found
        raise Missing(f"{tool} is not installed")

    def test(self, name):
        self.demand_here()
        found = sorted(self.tests.glob(f"**/{name}"))
        if not found:
            raise Failed(f"{name} is not in {self.tests}")
        return found[0]

    def terrace(self, part, *words, environment=None):
        return part.run([self.folder / "bin/terrace", *words], self.environment | (environment or {}))

    def python(self, part, script, *words):
        """The JSON object that a script in this folder prints."""
        self.demand_here()
        return json.loads(part.run([os.environ.get("PYTHON", sys.executable), "-B", HERE / script, *words], self.environment).splitlines()[-1])

    def tokens(self, model, sequences):
        """A file of exactly this many training sequences of random ids."""
        path = self.runs / f"tokens-{model.vocab}-{model.seq}-{sequences}.u32"
        if not path.exists():
            draw = random.Random(1)
            path.write_bytes(array.array("I", (draw.randrange(model.vocab) for _ in range(sequences * model.seq + 1))).tobytes())
        return path

    def words(self, model, flags, batch, accumulation, steps, sequences):
        flags = [*model.flags(), "--device", self.device, "--data-format", "u32", "--data", self.tokens(model, sequences), "--batch-size", batch,
                 "--grad-accumulation", accumulation, "--steps", steps, "--eval-batches", 0, "--durability", "none", "--warmup", 1, *flags]
        for flag, value in (("--device-memory", self.device_memory), ("--host-memory", self.host_memory)) if self.planned else ():
            flags += [] if flag in flags else [flag, value]
        return flags + [word for word in self.planned or [] if word not in flags]

    def plan(self, part, model, *flags, batch=1, accumulation=8, steps=4, sequences=None):
        words = self.words(model, flags, batch, accumulation, steps, sequences or batch * accumulation * 4)
        return json.loads(self.terrace(part, "plan", *words, "--json"))

    def train(self, part, model, *flags, batch=1, accumulation=8, steps=4, sequences=None, environment=None):
        """The figures of a run. One that fails or is cut after two steps has those of its steps, and the reason."""
        model, accumulation = self.model(model), min(accumulation, 4) if self.small else accumulation
        tokens = batch * accumulation * model.seq
        if self.planned:
            return measured(self.plan(part, model, *flags, batch=batch, accumulation=accumulation, steps=steps, sequences=sequences), [], model, tokens)
        out, begin, bad = self.runs / "run", time.monotonic(), {}
        words = self.words(model, flags, batch, accumulation, steps, sequences or batch * accumulation * 4)
        try:
            self.terrace(part, "train", *words, "--out-dir", out, environment=environment)
        except (Cut, Failed) as why:
            bad = {"cut" if isinstance(why, Cut) else "error": str(why)}
        try:
            plan, done = left_behind(out)
            figures = measured(plan, done, model, tokens) if len(done) > 1 else {}
            if not bad:
                figures["beside_steps_s"] = time.monotonic() - begin - sum(step["step_time_s"] for step in done)
                figures |= self.chosen(json.loads((out / "result.json").read_text()))
            return figures | bad
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def chosen(self, result):
        """The hash of the weights and the kernels that a run chose, which are also added to algorithms.txt."""
        lines = result.get("algorithms") or []
        file = self.out / "algorithms.txt"
        known = set(file.read_text().splitlines()) if file.exists() else set()
        if lines:
            file.write_text("\n".join(sorted(known | set(lines))) + "\n")
        return {"weights": result.get("weights_xxh64"), "attention": [line for line in lines if line.startswith("attention")],
                "split_sums": [line for line in lines if SPLIT.search(line)]}

    def keep_profile(self):
        for profile in (self.scratch / "cache/terrace").glob("machine*.json"):
            shutil.copy(profile, self.out)


def left_behind(out):
    """The plan and the finished steps of a run, even one that failed or was ended."""
    plan, metrics = out / "plan.json", out / "metrics.jsonl"
    if not plan.exists() or not metrics.exists():
        return {}, []
    whole = [line for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return json.loads(plan.read_text()), [json.loads(line) for line in whole]


def measured(plan, steps, model, tokens):
    """The speed of a run, where its time went, and how both differ from the plan."""
    shown = {"parameters": plan.get("parameters", model.parameters()), "tokens_a_step": tokens, "plan_s": plan.get("step_time_s"),
             "floor_s": plan.get("floor_s"), "link": plan.get("link"), "choice": plan.get("choice", {}).get("text"),
             "planned_peak_bytes": plan.get("peak_bytes")}
    if timed := steps[1:]:
        seconds = statistics.median(step["step_time_s"] for step in timed)
        shown |= {"step_s": seconds, "tokens_s": tokens / seconds, "model_flop_s": tokens / seconds * model.flops_a_token(),
                  "plan_error": plan["step_time_s"] / seconds - 1, "stall_s": timed[-1]["stall"], "offload": timed[-1]["offload"],
                  "peak": timed[-1].get("mem"), "losses": [step["loss"] for step in steps]}
    return shown
