"""The settings of the acceptance tests: where the programs are, which device, and all sizes (real ones for a GPU, small ones for a rehearsal)."""

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
from stages import Deadline, Failed, Logs, Skipped, run

HERE = pathlib.Path(__file__).resolve().parent


def cuda_libraries():
    """The folders of CUDA's libraries in PyTorch's wheels, for LD_LIBRARY_PATH."""
    folders = []
    for path in map(pathlib.Path, sys.path):
        folders += sorted(str(p) for p in path.glob("nvidia/*/lib"))
    return folders


GIB = 1 << 30
SCALES = {"MiB": 1 << 20, "GiB": GIB, "TiB": 1 << 40}


def bytes_of(text):
    """ "139GiB" or "3.00 GiB"."""
    number, unit = re.fullmatch(r"([\d.]+) ?([MGT]iB)", text).groups()
    return int(float(number) * SCALES[unit])


def mebibytes(count):
    return f"{int(count) >> 20}MiB"


class Setting:
    # What runs must leave free: on the host for the program, the driver and the system; on the device for CUDA and its
    # libraries; on the disk for other users.
    HOST_RESERVE, DEVICE_RESERVE, DISK_RESERVE = 8 * GIB, 4 * GIB, 4 * GIB

    def __init__(self, options):
        self.device, self.small, self.plans_only = options.device, options.small, options.plan
        # Flags that describe a machine other than this one; flags of a run take precedence.
        self.elsewhere = {}
        if options.plan and options.machine_profile:
            self.elsewhere = {"--machine-profile": pathlib.Path(options.machine_profile).resolve(),
                              "--device-memory": options.device_memory, "--host-memory": options.host_memory}
        self.folder = pathlib.Path(options.folder).resolve()
        self.tests = pathlib.Path(options.tests).resolve() if options.tests else self.folder / "tests"
        self.scratch = pathlib.Path(options.scratch).resolve()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.disk = pathlib.Path(options.disk).resolve() if options.disk else None
        path = ":".join(cuda_libraries() + [p for p in [os.environ.get("LD_LIBRARY_PATH")] if p])
        # The machine profile is kept after a call, so that the next call plans with it.
        self.environment = {"LD_LIBRARY_PATH": path, "XDG_CACHE_HOME": str(self.scratch / "cache")}
        # The logs are beside the record, or in the folder that it goes to.
        out = pathlib.Path(options.out).resolve()
        self.logs = Logs((out if out.is_dir() else out.parent) / f"gpu-{options.call}-logs")
        self.runs = 0
        self.matrix_peak = None  # FLOP/s; set once it is measured
        self.there = self.find(options)

    def disk_folder(self):
        folder = self.disk or self.scratch / "disk"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def find(self, options):
        """The bytes of each tier that runs may take: on this machine, now, or on the one that the options describe."""
        there = {"device": bytes_of(options.device_memory), "host": bytes_of(options.host_memory), "disk": bytes_of(options.disk_space)}
        if self.elsewhere:
            return there
        there["host"] = GIB
        there["disk"] = max(shutil.disk_usage(self.disk_folder()).free - self.DISK_RESERVE, GIB)
        try:
            told = self.terrace(Deadline(60), "doctor", "--device", self.device)
            # The limit of the machine or of this process's control group, whichever is smaller.
            if host := re.search(r" memory +([\d.]+ [MGT]iB) available", told):
                there["host"] = max(bytes_of(host[1]) - self.HOST_RESERVE, GIB)
            gpu = re.search(rf"{self.device} [^,;]*, ([\d.]+ [MGT]iB)", told)
            there["device"] = max(bytes_of(gpu[1]) - self.DEVICE_RESERVE, GIB) if gpu else there["host"] // 2
        except (Failed, Skipped) as why:  # the stages will report it, too
            print(why, file=sys.stderr)
        return there

    def disk_flags(self, host=None):
        """The flags for a disk tier of at most the free space, and for the host tier; a rehearsal has little host memory."""
        limits = ["--nvme-path", self.disk_folder(), "--nvme-limit", mebibytes(self.there["disk"])]
        return limits + (["--host-memory", "2MiB" if self.small else host] if host else [])

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
        return run([self.tool("terrace"), *words], deadline, self.environment, self.logs)

    def python(self, deadline, script, *words):
        """The JSON object that a script in this folder prints. The script ends with 77 if a library is missing."""
        self.demand_here()
        try:
            out = run([os.environ.get("PYTHON", sys.executable), "-B", HERE / script, *words], deadline, self.environment, self.logs)
        except Failed as error:
            if "ended with 77" in str(error):
                raise Skipped(str(error).splitlines()[2]) from None
            raise
        return json.loads(out.splitlines()[-1])

    def tokens(self, model, sequences):
        """A file of ids with exactly this many training sequences, and those that are held out."""
        path = self.scratch / f"tokens-{model.vocab}-{model.seq}-{sequences}.u32"
        if not path.exists():
            count = sequences * model.seq + 1
            held_out = model.seq + 1
            while (count + held_out) // 20 > held_out:
                held_out = (count + held_out) // 20
            draw = random.Random(1)
            path.write_bytes(array.array("I", (draw.randrange(model.vocab) for _ in range(count + held_out))).tobytes())
        return path

    def train(self, deadline, model, *flags, batch=1, accumulation=1, steps=6, sequences=None, plan_only=False):
        """Returns the plan of a run, the metrics of its steps and its result. An ended run has no result, but counts after two steps."""
        self.runs += 1
        out = self.scratch / f"run-{self.runs}"
        plan_only = plan_only or self.plans_only
        words = ["plan" if plan_only else "train", *model.flags(), "--device", self.device, "--data-format", "u32", "--data",
                 self.tokens(model, sequences or batch * accumulation * 4), "--batch-size", batch, "--grad-accumulation",
                 accumulation, "--steps", steps, "--eval-batches", 0, "--durability", "none", "--out-dir", out, "--warmup", 1,
                 *flags]
        if self.elsewhere or (plan_only and "--assumed-costs" not in flags):
            words += ["--assumed-costs"] if "--assumed-costs" not in flags else []
        if self.elsewhere:
            words += [word for flag, value in self.elsewhere.items() if flag not in flags for word in (flag, value)]
        elif not self.small and "--host-memory" not in flags:
            words += ["--host-memory", mebibytes(self.there["host"])]
        begin = time.monotonic()
        try:
            told = self.terrace(deadline, *words, *(["--json"] if plan_only else []))
            if plan_only:
                return json.loads(told), [], {}
            return (*left_behind(out), json.loads((out / "result.json").read_text()) | {"wall_s": time.monotonic() - begin})
        except Failed as why:
            plan, metrics = left_behind(out)
            if len(metrics) < 2:
                raise
            return plan, metrics, {"cut_short": str(why)[-2000:]}
        finally:
            shutil.rmtree(out, ignore_errors=True)


def left_behind(out):
    """The plan and the finished steps of a run, even one that failed or was ended."""
    plan, metrics = out / "plan.json", out / "metrics.jsonl"
    if not plan.exists() or not metrics.exists():
        return {}, []
    whole = [line for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return json.loads(plan.read_text()), [json.loads(line) for line in whole]


def measured(plan, steps, model, tokens, result=None):
    """The results of a run: its speed, where its time went, and how they differ from the plan."""
    shown = {"parameters": plan.get("parameters", model.parameters()), "tokens_a_step": tokens, "plan_s": plan.get("step_time_s"),
             "link": plan.get("link"), "choice": plan.get("choice", {}).get("text"), "planned_peak_bytes": plan.get("peak_bytes")}
    timed = steps[1:]
    if timed:
        seconds = statistics.median(s["step_time_s"] for s in timed)
        shown |= {"step_s": seconds, "tokens_s": tokens / seconds, "model_flop_s": tokens / seconds * model.flops_a_token(),
                  "plan_error": plan["step_time_s"] / seconds - 1, "stall_s": timed[-1]["stall"], "offload": timed[-1]["offload"],
                  "peak": timed[-1].get("mem"), "losses": [s["loss"] for s in steps]}
    if result and "wall_s" in result:  # the time for planning, memory, first weights, and the hash of the last weights
        shown["beside_steps_s"] = result["wall_s"] - sum(s["step_time_s"] for s in steps)
    if result and "cut_short" in result:
        shown["cut_short"] = result["cut_short"]
    return shown
