"""Where the programs are, which device, and how large everything is: the GPU's real sizes, or the small ones of a rehearsal."""

import array
import json
import os
import pathlib
import random
import shutil
import statistics
import sys

import models
from stages import Failed, Skipped, run

HERE = pathlib.Path(__file__).resolve().parent


def cuda_libraries():
    """Folders of CUDA's libraries in PyTorch's wheels, for LD_LIBRARY_PATH."""
    folders = []
    for path in map(pathlib.Path, sys.path):
        folders += sorted(str(p) for p in path.glob("nvidia/*/lib"))
    return folders


class Setting:
    def __init__(self, options):
        self.device, self.small, self.plans_only = options.device, options.small, options.plan
        # Of a machine that is not here; what a run says itself comes last.
        self.elsewhere = {}
        if options.plan and options.machine_profile:
            self.elsewhere = {"--machine-profile": pathlib.Path(options.machine_profile).resolve(),
                              "--device-memory": options.device_memory, "--host-memory": options.host_memory}
        self.folder = pathlib.Path(options.folder).resolve()
        self.tests = pathlib.Path(options.tests).resolve() if options.tests else self.folder / "tests"
        self.scratch = pathlib.Path(options.scratch).resolve()
        self.disk = pathlib.Path(options.disk).resolve() if options.disk else None
        path = ":".join(cuda_libraries() + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p])
        self.environment = {"LD_LIBRARY_PATH": path, "XDG_CACHE_HOME": str(self.scratch / "cache")}
        self.runs = 0

    def model(self, model):
        return models.TINY if self.small else model

    def tool(self, name):
        path = self.folder / "bin" / name
        if not path.exists():
            raise Skipped(f"{path} is not there")
        return path

    def demand_here(self):
        if self.elsewhere:
            raise Skipped("runs are planned for another machine")

    def test(self, name):
        self.demand_here()
        found = sorted(self.tests.glob(f"**/{name}"))
        if not found:
            raise Skipped(f"{name} is not in {self.tests}")
        return found[0]

    def terrace(self, deadline, *words):
        return run([self.tool("terrace"), *words], deadline, self.environment)

    def python(self, deadline, script, *words):
        """One JSON object from a script beside this one; it ends with 77 where a library is missing."""
        self.demand_here()
        try:
            out = run([os.environ.get("PYTHON", sys.executable), "-B", HERE / script, *words], deadline, self.environment)
        except Failed as error:
            if "ended with 77" in str(error):
                raise Skipped(str(error).splitlines()[2]) from None
            raise
        return json.loads(out.splitlines()[-1])

    def tokens(self, model, sequences):
        """A file of ids that hold exactly so many training sequences, and the one that is held out."""
        path = self.scratch / f"tokens-{model.vocab}-{model.seq}-{sequences}.u32"
        if not path.exists():
            count = sequences * model.seq + 1
            held_out = model.seq + 1
            while (count + held_out) // 20 > held_out:
                held_out = (count + held_out) // 20
            draw = random.Random(1)
            array.array("I", (draw.randrange(model.vocab) for _ in range(count + held_out))).tofile(path.open("wb"))
        return path

    def train(self, deadline, model, *flags, batch=1, accumulation=1, steps=6, sequences=None):
        """A run's plan, the metrics of its steps and its result."""
        self.runs += 1
        out = self.scratch / f"run-{self.runs}"
        words = ["train" if not self.plans_only else "plan", *model.flags(), "--device", self.device, "--data-format", "u32", "--data",
                 self.tokens(model, sequences or batch * accumulation * 4), "--batch-size", batch, "--grad-accumulation",
                 accumulation, "--steps", steps, "--eval-batches", 0, "--durability", "none", "--out-dir", out, "--warmup", 1,
                 *flags]
        if self.elsewhere:
            words += ["--assumed-costs"] if "--assumed-costs" not in flags else []
            words += [word for flag, value in self.elsewhere.items() if flag not in flags for word in (flag, value)]
        if self.disk and "--nvme-path" in flags:
            self.disk.mkdir(parents=True, exist_ok=True)
        try:
            told = self.terrace(deadline, *words, *(["--json"] if self.plans_only else []))
            if self.plans_only:
                return json.loads(told), [], {}
            plan, result = (json.loads((out / f"{name}.json").read_text()) for name in ("plan", "result"))
            steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return plan, steps, result


def measured(plan, steps, model, tokens):
    """What a run shows: speed, where its time went, and how the plan saw it."""
    shown = {"parameters": plan.get("parameters", model.parameters()), "tokens_a_step": tokens, "plan_s": plan.get("step_time_s"),
             "link": plan.get("link"), "choice": plan.get("choice", {}).get("text"), "planned_peak_bytes": plan.get("peak_bytes")}
    timed = steps[1:]
    if timed:
        seconds = statistics.median(s["step_time_s"] for s in timed)
        shown |= {"step_s": seconds, "tokens_s": tokens / seconds, "model_flop_s": tokens / seconds * model.flops_a_token(),
                  "plan_error": plan["step_time_s"] / seconds - 1, "stall_s": timed[-1]["stall"], "offload": timed[-1]["offload"],
                  "peak": timed[-1].get("mem"), "losses": [s["loss"] for s in steps]}
    return shown
