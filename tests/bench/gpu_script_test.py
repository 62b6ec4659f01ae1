"""bench/gpu.sh: rows keep their deadlines, their order and their record, with planted commands in place of the programs.

    gpu_script_test.py ROOT FOLDER [TEST…]
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

ROOT, FOLDER = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
sys.path.insert(0, str(ROOT / "bench/gpu"))
import main as script  # noqa: E402
import models  # noqa: E402
import more  # noqa: E402
import programs  # noqa: E402
import rows  # noqa: E402
from record import Cut, Failed, Missing, Part, Record  # noqa: E402


def planted(path, text):
    """A program of a few lines of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def entries(out):
    return {entry["name"]: entry for entry in json.loads((out / "gpu.json").read_text())["rows"]}


def wait_for(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(pid_file):
    """Whether the process whose id a planted program has written there no longer runs."""
    stat = pathlib.Path(f"/proc/{pid_file.read_text().strip()}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] in "ZX"


class Table(unittest.TestCase):
    def test_has_the_order_and_the_deadlines_of_the_fifteen_minutes(self):
        self.assertEqual([(row.name, row.seconds) for row in rows.TABLE],
                         [("profile", 25), ("mends", 40), ("tails", 10), ("budgets", 25), ("products", 20), ("resident", 125), ("waits", 100),
                          ("offloaded", 95), ("pytorch", 70), ("link", 20), ("sanitizer", 50)])
        self.assertEqual(sum(row.seconds for row in rows.TABLE), rows.BUDGET_S)
        self.assertEqual(rows.BUDGET_S, 580)

    def test_is_what_the_script_lists_and_the_page_shows(self):
        listed = subprocess.run([ROOT / "bench/gpu.sh", "--list"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(len(listed.splitlines()), 2 + len(script.ROWS))
        self.assertTrue("\n" + listed in (ROOT / "docs/internals/gpu.md").read_text(), "bench/gpu.sh --list prints another table than docs/internals/gpu.md has")

    def test_names_are_unique(self):
        self.assertEqual(len({row.name for row in script.ROWS}), len(script.ROWS))
        self.assertEqual(script.chosen("0,3,5-7,bits"), [0, 3, 5, 6, 7, 11])


class Rows(unittest.TestCase):
    """Rows whose parts run planted commands."""

    def setUp(self):
        self.out = FOLDER / self._testMethodName
        shutil.rmtree(self.out, ignore_errors=True)

    def call(self, *planted_rows, budget_s=60):
        """Each of the rows: its seconds, its parts by name, and perhaps a judge."""
        record = Record(self.out, budget_s, {})
        with contextlib.redirect_stdout(None):
            states = [record.run(number, rows.Row(f"row {number}", "", seconds, "", lambda _, parts=parts: parts, *judge), None)
                      for number, (seconds, parts, *judge) in enumerate(planted_rows)]
        return states, entries(self.out)

    @staticmethod
    def sh(text):
        return lambda part: {"out": part.run(["sh", "-c", text])}

    def test_one_that_hangs_is_cut_with_its_children_and_the_next_runs(self):
        hangs = f"trap '' INT; echo so far; sleep 30 & echo $! >{self.out}/pid; sleep 30"
        states, told = self.call((1, {"first": self.sh("echo 1"), "hangs": self.sh(hangs)}), (5, {"next": self.sh("echo 2")}))
        self.assertEqual(states, ["cut", "done"])
        self.assertEqual(told["row 0"]["why"], "hangs: cut at 1 s")
        self.assertEqual(told["row 0"]["result"]["first"], {"out": "1\n"})
        self.assertEqual((told["row 0"]["commands"][1]["exit"], told["row 0"]["commands"][1]["tail"]), (None, ["so far"]))
        self.assertLess(told["row 0"]["seconds"], 3)
        wait_for(lambda: ended(self.out / "pid"))

    def test_a_part_that_hangs_costs_only_its_share(self):
        states, told = self.call((2, {"hangs": self.sh("sleep 30"), "next": self.sh("echo 2")}))
        self.assertEqual((states, told["row 0"]["result"]), (["cut"], {"hangs": {"cut": "cut at 1 s"}, "next": {"out": "2\n"}}))

    def test_a_command_that_is_interrupted_prints_what_it_has(self):
        with self.assertRaises(Cut) as cut:
            Part(1, logs=self.out / "x").run(["sh", "-c", "trap 'echo so far; exit 75' INT; while :; do sleep 0.1; done"])
        self.assertEqual(cut.exception.out, "so far\n")

    def test_nothing_outlives_a_command_that_ends(self):
        self.call((5, {"leaves a child": self.sh(f"sleep 30 & echo $! >{self.out}/pid")}))
        wait_for(lambda: ended(self.out / "pid"))

    def test_whatever_fails_is_recorded_and_the_next_runs(self):
        def judge(_):
            raise Failed("other bits")

        states, told = self.call((5, {"fails": self.sh("echo out; echo err >&2; exit 3"), "next": self.sh("echo 1")}),
                                 (5, {"breaks": lambda part: {}["no such key"]}), (5, None), (5, {"good": self.sh("true")}, judge),
                                 (5, {"good": self.sh("true")}))
        self.assertEqual(states, ["failed"] * 4 + ["done"])
        failed = told["row 0"]
        self.assertEqual(failed["why"], "fails: sh ended with 3: out | err")
        self.assertEqual((failed["commands"][0]["exit"], failed["commands"][0]["tail"]), (3, ["out", "err"]))
        self.assertEqual((self.out / failed["commands"][0]["log"]).read_text(), "out\n")
        self.assertEqual(failed["result"]["next"], {"out": "1\n"})
        self.assertIn("KeyError", told["row 1"]["why"])
        self.assertIn("AttributeError", told["row 2"]["why"])
        self.assertEqual(told["row 3"]["why"], "other bits")

    def test_what_is_missing_is_named_and_the_rest_runs(self):
        torch = self.sh("echo PyTorch is not installed; exit 77")
        states, told = self.call((5, {"terrace": self.sh("echo 1"), "PyTorch": torch}), (5, {"PyTorch": torch}))
        self.assertEqual(states, ["done", "left out"])
        self.assertEqual((told["row 0"]["why"], told["row 1"]["why"]), ("PyTorch: PyTorch is not installed",) * 2)

    def test_the_budget_ends_the_list_with_the_reason(self):
        sleeps = {"sleeps": self.sh("sleep 0.2")}
        states, told = self.call((2, sleeps), (10, sleeps), (1, {"short": self.sh("true")}), budget_s=2.2)
        self.assertEqual(states, ["done", "left out", "done"])
        self.assertEqual(told["row 1"]["why"], "2 s are left, and it may take 10")

    def test_each_is_on_disk_before_the_next_begins(self):
        seen = []

        def look(part):
            seen.append({name: (entry["state"], list(entry["result"])) for name, entry in entries(self.out).items()})
            return {}

        self.call((5, {"a": look, "b": look}), (5, {"c": look}))
        self.assertEqual(seen, [{"row 0": ("running", [])}, {"row 0": ("running", ["a"])}, {"row 0": ("done", ["a", "b"]), "row 1": ("running", [])}])

    def test_those_of_an_earlier_call_stay(self):
        self.call((5, {"first": self.sh("echo 1")}), (5, {"second": self.sh("echo 1")}))
        told = self.call((5, {"first": self.sh("echo 2")}))[1]
        self.assertEqual([told[f"row {n}"]["result"] for n in (0, 1)], [{"first": {"out": "2\n"}}, {"second": {"out": "1\n"}}])


TERRACE = """command=$1
for word; do case $last in --out-dir) out=$word ;; esac; last=$word; done
case $command in
  doctor) mkdir -p "$XDG_CACHE_HOME/terrace"; echo '{"rates": 1}' >"$XDG_CACHE_HOME/terrace/machine-cuda-0.json"; echo 'OK    memory' ;;
  bench) echo '{"results": [{"op": "both"}]}' ;;
  train)
    mkdir -p "$out"; echo '{"step_time_s": 1, "floor_s": 1}' >"$out/plan.json"
    for i in 1 2 3; do echo '{"step_time_s": 0.5, "loss": 2.0, "stall": {}, "offload": {"h2d_bytes": 1}}'; done >"$out/metrics.jsonl"
    echo '{"weights_xxh64": "1234", "algorithms": ["library cuBLASLt", "matmul a: algorithm 1, split 4, x", "matmul b: split 1, x"]}' >"$out/result.json" ;;
esac
"""
# Reports one test, and what `then` says.
PROGRAM = """for word; do case $word in --gtest_output=json:*) report=${word#--gtest_output=json:} ;; esac; done
echo began; echo '{"testsuites": [{"testsuite": [{"classname": "A", "name": "B", "status": "RUN", "result": "%s"%s}]}]}' >$report
%s
"""
FAILURE = ', "failures": [{"failure": "1 is not 2"}]'
TESTS = ("core_devices_test", "gpu_math_test", "gpu_kernels_test", "gpu_layers_test")


class Script(unittest.TestCase):
    """The whole script, with a planted folder and planted tools."""

    def setUp(self):
        self.here = FOLDER / self._testMethodName
        shutil.rmtree(self.here, ignore_errors=True)
        self.out, self.tools = self.here / "out", self.here / "tools"
        self.terrace(TERRACE)
        for name in TESTS:
            planted(self.here / "folder/tests" / name, PROGRAM % ("COMPLETED", "", ""))
        self.tools.mkdir()
        for name in ("sh", "seq", "cat", "mkdir", "sleep", "touch"):
            (self.tools / name).symlink_to(shutil.which(name))
        self.python("echo PyTorch is not installed; exit 77")

    def terrace(self, text):
        planted(self.here / "folder/bin/terrace", text)

    def python(self, text):
        planted(self.tools / "planted-python", text)

    def words(self, *words):
        return [sys.executable, "-B", ROOT / "bench/gpu/main.py", "--folder", self.here / "folder", "--out", self.out, "--scratch", self.here / "scratch", *words]

    def environment(self):
        return {"PATH": str(self.tools), "PYTHON": str(self.tools / "planted-python")}

    def call(self, *words):
        done = subprocess.run(self.words(*words), env=self.environment(), capture_output=True, text=True, check=False)
        return done.returncode, entries(self.out) if (self.out / "gpu.json").exists() else done.stderr

    def test_without_torch_sanitizer_and_nvidia_smi(self):
        status, told = self.call()
        self.assertEqual(status, 0, told)
        self.assertEqual(list(told), [row.name for row in rows.TABLE])
        self.assertEqual({name for name, entry in told.items() if entry["state"] == "left out"}, {"products", "sanitizer"})
        self.assertEqual({entry["state"] for entry in told.values()}, {"done", "left out"})
        self.assertIn("nvidia-smi is not installed", told["profile"]["why"])
        self.assertIn("PyTorch is not installed", told["pytorch"]["why"])
        self.assertIn("racecheck: compute-sanitizer is not installed", told["sanitizer"]["why"])
        self.assertEqual(told["resident"]["gpu"], "nvidia-smi is not installed")
        self.assertEqual(told["budgets"]["verdict"], {"auto head rows": "1234", "2,048 head rows": "1234"})
        self.assertEqual(told["offloaded"]["verdict"], {"clip 0 ÷ resident": 1, "clip 1 ÷ resident": 1})
        self.assertEqual(told["budgets"]["result"]["auto head rows: no limit"]["split_sums"], ["matmul a: algorithm 1, split 4, x"])
        self.assertEqual(json.loads((self.out / "machine-cuda-0.json").read_text()), {"rates": 1})
        self.assertEqual(len((self.out / "algorithms.txt").read_text().splitlines()), 3)
        self.assertRegex((self.out / "table.md").read_text(), r"\| 8 \|.*terrace: 65,536 tokens/s; PyTorch: PyTorch is not installed")
        self.assertEqual(list((self.here / "scratch").iterdir()), [self.here / "scratch/cache"])

    def test_with_torch_sanitizer_and_nvidia_smi(self):
        self.python("echo '{\"tokens_s\": 32768}'")
        planted(self.tools / "nvidia-smi", "if [ $# = 0 ]; then echo H100; else echo '1024, 700.5, 1755'; fi")
        planted(self.tools / "compute-sanitizer", "echo \"$2\"; [ $2 != racecheck ]")
        self.terrace(TERRACE.replace("train)", "train) sleep 1.1"))
        status, told = self.call("--only", "0,4,8,10")
        self.assertEqual((status, told["sanitizer"]["state"]), (1, "failed"))
        self.assertIn("racecheck: compute-sanitizer ended with 1", told["sanitizer"]["why"])
        self.assertEqual(told["sanitizer"]["result"]["memcheck"], {"lines": ["memcheck"]})
        self.assertEqual(told["profile"]["result"]["nvidia-smi"], {"lines": ["H100"]})
        self.assertEqual(told["pytorch"]["gpu"], {"memory_mib": 1024, "power_w": 700.5, "clock_mhz": 1755})
        self.assertEqual(told["pytorch"]["verdict"], {"terrace ÷ PyTorch": 2})
        self.assertEqual(told["products"]["result"], {"PyTorch": {"tokens_s": 32768}})

    def test_a_terrace_that_hangs_costs_no_other_row_its_turn(self):
        self.terrace("echo began; sleep 60")
        status, told = self.call("--only", "0-3", "--patience", "0.04")
        self.assertEqual((status, [entry["state"] for entry in told.values()]), (1, ["cut", "done", "done", "cut"]))

    def test_a_script_that_is_killed_leaves_the_rows_that_ended(self):
        self.terrace(TERRACE.replace("bench)", f"bench) echo $$ >{self.here}/pid; sleep 20;"))
        process = subprocess.Popen(self.words("--only", "0,9"), env=self.environment(), stdout=subprocess.DEVNULL)
        wait_for(lambda: (self.here / "pid").exists() and (self.here / "pid").read_text().strip())
        process.kill()
        process.wait()
        os.killpg(int((self.here / "pid").read_text()), signal.SIGKILL)
        told = entries(self.out)
        self.assertEqual({name: entry["state"] for name, entry in told.items()}, {"profile": "done", "link": "running"})
        self.assertRegex(told["link"]["commands"][0]["command"], "bench pcie")
        self.assertTrue((self.out / "machine-cuda-0.json").exists())

    def test_a_script_that_is_ended_ends_its_command(self):
        self.terrace(TERRACE.replace("bench)", f"bench) sleep 30 & echo $! >{self.here}/pid; sleep 30;"))
        process = subprocess.Popen(self.words("--only", "9"), env=self.environment(), stdout=subprocess.DEVNULL)
        wait_for(lambda: (self.here / "pid").exists() and (self.here / "pid").read_text().strip())
        process.terminate()
        self.assertEqual(process.wait(), 143)
        self.assertEqual((entries(self.out)["link"]["state"], entries(self.out)["link"]["why"]), ("cut", "the script was ended"))
        wait_for(lambda: ended(self.here / "pid"))

    def test_a_run_that_is_cut_keeps_its_steps(self):
        self.terrace(TERRACE.replace('/metrics.jsonl"', '/metrics.jsonl"; printf "{" >>"$out/metrics.jsonl"; sleep 30'))
        status, told = self.call("--only", "offloaded", "--patience", "0.02")
        self.assertEqual((status, told["offloaded"]["state"]), (1, "cut"))
        self.assertEqual((told["offloaded"]["result"]["clip 1"]["tokens_s"], told["offloaded"]["result"]["clip 1"]["cut"]), (65536, "cut at 1 s"))
        self.assertIn("clip 1: 65,536 tokens/s, cut at 1 s", (self.out / "table.md").read_text())

    def test_other_bits_fail(self):
        self.terrace(TERRACE.replace("1234", "'$$'"))
        status, told = self.call("--only", "3")
        self.assertEqual((status, told["budgets"]["state"]), (1, "failed"))
        self.assertEqual(told["budgets"]["why"], "auto head rows: 16 MiB has other bits; 2,048 head rows: 16 MiB has other bits")
        with self.assertRaisesRegex(Failed, "head 64: on disk moved nothing"):
            rows.same_bits({"head 64: on disk": {"weights": "1", "losses": [1], "offload": {"h2d_bytes": 0}}})

    # What is translated is in the driver's cache, whose size tells how much it was.
    TRANSLATES = """train)
    if [ "$CUDA_FORCE_PTX_JIT" ] && ! [ -e "$CUDA_CACHE_PATH/x" ]; then
      sleep 1; mkdir -p "$CUDA_CACHE_PATH"; for i in 1 2 3 4; do echo 0123456; done >"$CUDA_CACHE_PATH/x"
    fi
    """

    def test_the_start_with_ptx_is_timed_by_size(self):
        self.terrace(TERRACE.replace("train)", self.TRANSLATES))
        status, told = self.call("--only", "start")
        self.assertEqual(status, 0, told)
        parts = told["start"]["result"]
        self.assertEqual([parts[f"fp32: {way}"]["translated_bytes"] for way in ("code", "PTX", "PTX again")], [0, 32, 0])
        self.assertGreaterEqual(parts["bf16: PTX"]["start_s"], 0.99)  # of the planted translation
        for dtype in ("bf16", "fp32"):
            seconds = told["start"]["verdict"][f"{dtype}: seconds to translate"]
            self.assertAlmostEqual(told["start"]["verdict"][f"{dtype}: seconds a MiB"], seconds * (1 << 20) / 32)

    def test_a_cache_that_keeps_nothing_fails(self):
        self.terrace(TERRACE.replace("train)", self.TRANSLATES.replace("/x", "/$$")))
        status, told = self.call("--only", "start")
        self.assertEqual((status, told["start"]["state"]), (1, "failed"))
        self.assertIn("bf16: the driver's cache kept nothing: 32 bytes", told["start"]["why"])

    def test_an_unknown_row_is_refused(self):
        status, said = self.call("--only", "nothing")
        self.assertEqual(status, 2)
        self.assertIn("there is no row nothing", said)


class Programs(unittest.TestCase):
    """What becomes of test programs."""

    class Setting:
        environment, device = {}, "cuda:0"

    def told(self, *program, parts=1, seconds=10):
        s = self.Setting()
        s.runs = FOLDER / self._testMethodName
        shutil.rmtree(s.runs, ignore_errors=True)
        path = planted(s.runs / "t", PROGRAM % program)
        s.test = lambda _: path
        return programs.tests(s, "t", parts=parts)(Part(seconds, logs=s.runs / "log"))

    def test_that_pass_are_counted_over_all_parts_at_once(self):
        here = FOLDER / self._testMethodName
        meet = f"touch {here}/part-$GTEST_SHARD_INDEX; for part in 0 1 2; do until [ -e {here}/part-$part ]; do sleep 0.05; done; done"
        told = self.told("COMPLETED", "", meet, parts=3)
        self.assertEqual((told["ran"], "error" in told), (3, False))

    def test_that_fail_crash_or_skip_all_tests_fail(self):
        told = self.told("COMPLETED", FAILURE, "exit 1")
        self.assertEqual((told["failed"], told["error"]), ({"A.B": "1 is not 2"}, "1 failed: A.B"))
        self.assertIn("ended with 139", self.told("COMPLETED", "", "kill -SEGV $$")["error"])
        self.assertEqual(self.told("SKIPPED", "", "")["error"], "no test of t ran")

    def test_that_hang_are_cut_with_all_parts(self):
        here = FOLDER / self._testMethodName
        told = self.told("COMPLETED", "", f"echo $$ >{here}/pid-$GTEST_SHARD_INDEX; sleep 30", parts=2, seconds=1)
        self.assertEqual((told["cut"], told["ran"]), ("cut at 1 s", 2))
        wait_for(lambda: ended(here / "pid-0") and ended(here / "pid-1"))

    def test_that_are_not_in_the_folder_fail(self):
        s = script.Setting(script.arguments(["--folder", str(FOLDER / "empty"), "--scratch", str(FOLDER / "scratch")]), FOLDER)
        with self.assertRaisesRegex(Failed, "gpu_math_test is not in"):
            s.test("gpu_math_test")
        with self.assertRaisesRegex(Missing, "is not installed"):
            s.find("no-such-tool")


class Sizes(unittest.TestCase):
    class Setting:
        small = False
        planned = ["--assumed-costs"]
        device_memory, host_memory = "100GiB", "116GiB"

        def __init__(self, *plans):
            self.plans = iter(plans)

        def model(self, model):
            return model

        def disk_flags(self):
            return ["--nvme-limit", "50GiB"]

        def plan(self, *_, **__):
            if isinstance(step_s := next(self.plans), Exception):
                raise step_s
            return {"step_time_s": step_s}

        def train(self, *_, **__):
            return {"losses": [2.0, 1.9]}

    def test_the_largest_that_has_room_is_accepted_and_ends_in_time(self):
        s = self.Setting(70.0, Cut("cut at 66 s", ""), Failed("refused"), 10.0)
        s.planned = []
        there, more.tiers = more.tiers, lambda *_: {"device": 100 << 30, "host": 116 << 30, "disk": 50 << 30}
        try:
            told = more.size(s, [40, 20, 19, 18, 16], 12, "split", True)["split"](Part(200))
        finally:
            more.tiers = there
        self.assertEqual(told["billions"], 16)
        for said, why in zip(told["passed_over"], ("40B: .* there is room", "20B: would end in 410 s", "19B: cut", "18B: refused"), strict=True):
            self.assertRegex(said, why)

    def test_that_do_not_fit_or_do_not_learn_fail(self):
        self.assertIn("no size of", more.size(self.Setting(), [400], 12, "split", False)["split"](Part(200))["error"])
        s = self.Setting(1.0)
        s.train = lambda *_, **__: {"losses": [2.0, 2.1]}
        self.assertIn("did not fall", more.size(s, [4], 12, "split", False)["split"](Part(200))["error"])

    def test_models_have_the_sizes_that_they_are_called_by(self):
        for model, parameters in ((models.LLAMA_1B, 1_235_814_400), (models.LLAMA_3B, 3_212_749_824), (models.LLAMA_8B, 8_030_261_248)):
            self.assertEqual(model.parameters(), parameters)
        self.assertTrue(40e9 < models.of_size(40).parameters() < 41e9)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
