"""bench/gpu.sh: its stages keep their deadlines and their record, and a rehearsal on the CPU device runs every command of it.

    gpu_script_test.py ROOT BUILD FOLDER [TEST…]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

ROOT, BUILD, FOLDER = map(pathlib.Path, sys.argv[1:4])
sys.path.insert(0, str(ROOT / "bench/gpu"))
import main as acceptance  # noqa: E402
import models  # noqa: E402
import programs  # noqa: E402
import stages  # noqa: E402


class Record(unittest.TestCase):
    def setUp(self):
        self.out = FOLDER / "stages.json"

    def stages(self, budget_s):
        return stages.Stages("test", self.out, budget_s, {"device": "none"})

    def states(self):
        return {s["name"]: s["state"] for s in json.loads(self.out.read_text())["stages"]}

    def test_what_a_stage_keeps_is_there_when_it_fails_or_is_cut(self):
        s = self.stages(60)

        def fails(deadline):
            deadline.keep({"first": 1})
            raise stages.Failed("the second")

        def is_ended(deadline):
            deadline.keep({"first": 2})
            self.assertEqual(json.loads(self.out.read_text())["stages"][-1]["result"], {"first": 2})
            raise SystemExit(143)

        s.run("fails", 1, 10, fails)
        with self.assertRaises(SystemExit):
            s.run("cut", 1, 10, is_ended)
        self.assertEqual([(r["state"], r["result"]) for r in json.loads(self.out.read_text())["stages"]],
                         [("failed", {"first": 1}), ("cut", {"first": 2})])

    def test_every_end_is_recorded_before_the_next_begins(self):
        s = self.stages(60)
        seen = []

        def fails(_):
            seen.append(self.states())
            raise stages.Failed("this is why")

        def absent(_):
            seen.append(self.states())
            raise stages.Skipped("there is no such library")

        def breaks(_):
            raise KeyError("unexpected")

        s.run("good", 1, 10, lambda deadline: {"left": deadline.left()})
        s.run("bad", 1, 10, fails)
        s.run("absent", 1, 10, absent)
        s.run("broken", 1, 10, breaks)
        s.run("long", 100, 200, lambda deadline: self.fail("there was no time for it"))
        self.assertEqual(seen, [{"good": "done", "bad": "running"}, {"good": "done", "bad": "failed", "absent": "running"}])
        self.assertEqual(self.states(), {"good": "done", "bad": "failed", "absent": "skipped", "broken": "failed", "long": "skipped"})
        record = json.loads(self.out.read_text())["stages"]
        self.assertLessEqual(record[0]["result"]["left"], 10)
        self.assertEqual(record[1]["error"], "this is why")
        self.assertIn("KeyError", record[3]["error"])
        self.assertIn("needs 100", record[4]["why"])
        self.assertEqual(s.failed(), ["bad", "broken"])

    def test_no_stage_may_take_more_than_what_is_left(self):
        s = self.stages(3)
        s.run("first", 1, 100, lambda deadline: self.assertLessEqual(deadline.left(), 3))
        self.assertEqual(self.states(), {"first": "done"})

    def test_a_command_ends_with_its_children_at_the_deadline(self):
        mark = FOLDER / "still-here"
        with self.assertRaisesRegex(stages.Failed, "ended at its deadline"):
            stages.run(["sh", "-c", f"(sleep 3; touch {mark}) & sleep 30"], stages.Deadline(1))
        time.sleep(3)
        self.assertFalse(mark.exists())

    def test_a_command_that_fails_says_how(self):
        with self.assertRaisesRegex(stages.Failed, "ended with 3\n(.|\n)*out(.|\n)*err"):
            stages.run(["sh", "-c", "echo out; echo err >&2; exit 3"], stages.Deadline(10))


class Programs(unittest.TestCase):
    """A test program that fails, crashes, hangs or is missing costs no other program its turn, and its output is kept."""

    PASSES = """#!/bin/sh
for word; do case $word in --gtest_output=json:*) report=${word#--gtest_output=json:} ;; esac; done
echo %(said)s; echo %(said)s on the other stream >&2
[ %(writes)d = 0 ] || echo '{"testsuites": [{"testsuite": [
  {"classname": "Suite", "name": "Good", "status": "RUN", "result": "COMPLETED"},
  {"classname": "Suite", "name": "Here", "status": "RUN", "result": "%(result)s"%(failures)s}]}]}' > $report
%(then)s
"""

    def setUp(self):
        self.tests = FOLDER / "programs"
        self.tests.mkdir(parents=True, exist_ok=True)
        self.s = acceptance.Setting(acceptance.arguments(["speed", "--small", "--device", "cpu", "--folder", str(FOLDER), "--tests",
                                                          str(self.tests), "--scratch", str(self.tests), "--out", str(self.tests)]))

    def add(self, name, writes=1, result="COMPLETED", failures="", then=""):
        program = self.tests / name
        program.write_text(self.PASSES % {"said": f"{name} began", "writes": writes, "result": result, "failures": failures, "then": then})
        program.chmod(0o755)

    def test_that_fail_crash_hang_or_are_missing_are_reported_and_the_others_run(self):
        self.add("fails", failures=', "failures": [{"failure": "1 is not 2"}]', then="exit 1")
        self.add("crashes", writes=0, then="kill -SEGV $$")
        self.add("hangs", writes=0, then="sleep 60")
        self.add("good", result="SKIPPED")
        kept = {}
        with self.assertRaisesRegex(stages.Failed, "fails, crashes, hangs, missing"):
            programs.run_programs(self.s, stages.Deadline(8, kept.update), {n: [] for n in ("fails", "crashes", "hangs", "missing", "good")})
        self.assertEqual(kept["fails"]["failed"], {"Suite.Here": "1 is not 2"})
        self.assertIn("ended with 139", kept["crashes"]["error"])
        self.assertIn("ended at its deadline", kept["hangs"]["error"])
        self.assertIn("is not in", kept["missing"]["missing"])
        self.assertEqual(kept["good"], {"ran": 1, "skipped": 1, "failed": {}})
        told = {log.name.split("-", 1)[1]: log.read_text() for log in (self.tests / "gpu-speed-logs").iterdir()}
        self.assertEqual(told["hangs.txt"], "hangs began\n")
        self.assertEqual(told["hangs.err"], "hangs began on the other stream\n")

    def test_that_all_pass_are_counted(self):
        self.add("good")
        found = programs.run_programs(self.s, stages.Deadline(8), {"good": []})
        self.assertEqual(found, {"good": {"ran": 2, "skipped": 0, "failed": {}}})

    def test_in_parts_at_once_are_counted_together(self):
        here = f"touch {self.tests}/part-$GTEST_SHARD_INDEX; for part in 0 1 2; do until [ -e {self.tests}/part-$part ]; do sleep 0.1; done; done"
        self.add("parts", then=f"test $GTEST_TOTAL_SHARDS = 3 || exit 1; {here}; exit $((GTEST_SHARD_INDEX == 1 ? 7 : 0))")
        kept = {}
        with self.assertRaisesRegex(stages.Failed, "ended with 7"):
            programs.run_programs(self.s, stages.Deadline(20, kept.update), {"parts": []}, {"parts": 3})
        self.assertEqual(kept["parts"]["ran"], 6)

    def test_all_parts_end_at_the_deadline(self):
        self.add("sleeps", writes=0, then=f"sleep 4; touch {self.tests / 'went-on'}")
        with self.assertRaisesRegex(stages.Failed, "ended at its deadline"):
            programs.run_programs(self.s, stages.Deadline(1), {"sleeps": []}, {"sleeps": 2})
        time.sleep(4)
        self.assertFalse((self.tests / "went-on").exists())


class Kept(unittest.TestCase):
    """What a stage has measured when its time ends or a later run fails, and what it chooses by what is there."""

    class Setting:
        small = plans_only = False
        disk = None
        device, elsewhere = "none", {}
        there = {"device": 135 << 30, "host": 116 << 30, "disk": 50 << 30}

        def __init__(self, *ends):
            self.ends, self.asked = iter(ends), []

        def model(self, model):
            return model

        def disk_folder(self):
            return FOLDER

        def disk_flags(self):
            return []

        def next(self):
            end = next(self.ends)
            if isinstance(end, Exception):
                raise end
            return end

        def train(self, _, model, *words, **__):
            self.asked.append((model, words))
            return self.next()

    PLAN = {"choice": {"recompute": 0, "order": "vertical", "group": 0, "text": ""}, "step_time_s": 2.0, "floor_s": 1.0}
    STEPS = [{"step_time_s": 1.0, "loss": 2.0 - 0.1 * i, "stall": {}, "offload": {}} for i in range(3)]

    def test_of_turns_beside_a_rival(self):
        s = self.Setting({"tokens_s": 1.0}, stages.Failed("late"))
        told = acceptance.beside(s, stages.Deadline(9), s.next, lambda: {"tokens_s": 2.0})
        self.assertEqual((told["terrace"], told["cut_short"], told["times_the_rival"]), ([{"tokens_s": 1.0}], "late", 0.5))
        s = self.Setting(stages.Failed("at once"))
        with self.assertRaisesRegex(stages.Failed, "at once"):
            acceptance.beside(s, stages.Deadline(9), s.next, dict)

    def test_of_an_offloaded_run_whose_resident_one_fails(self):
        kept = []
        s = self.Setting((self.PLAN, [], {}), stages.Failed("too large"))
        told = acceptance.tax(s, stages.Deadline(9, kept.append), models.TINY, "1GiB", 256, 0)
        self.assertEqual((told["bound"], told["resident_failed"]), (0.5, "too large"))
        self.assertEqual(kept[0]["offloaded"]["plan_s"], 2.0)

    def setting(self, program_text, scratch):
        """Of a folder whose program is this."""
        program = FOLDER / "bin/terrace"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(program_text)
        program.chmod(0o755)
        return acceptance.Setting(acceptance.arguments(["speed", "--small", "--device", "cpu", "--folder", str(FOLDER), "--scratch",
                                                        str(FOLDER / scratch), "--out", str(FOLDER)]))

    def test_host_memory_is_what_the_program_finds_left_under_all_limits(self):
        s = self.setting("#!/bin/sh\necho 'OK    memory            40.0 GiB available of 2.00 TiB'\n", "limits")
        self.assertEqual(s.there["host"], 32 << 30)

    def test_of_a_run_that_is_ended(self):
        s = self.setting("""#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --out-dir ] && out=$2; shift; done
[ -n "$out" ] || exit 0
mkdir -p $out; echo '{"step_time_s": 1}' > $out/plan.json
for i in 1 2; do echo '{"step_time_s": 1.0, "loss": 2.0, "stall": {}, "offload": {}}'; done > $out/metrics.jsonl
printf '{"step_ti' >> $out/metrics.jsonl
sleep 30
""", "ended")
        s.scratch.mkdir(parents=True, exist_ok=True)
        plan, steps, result = s.train(stages.Deadline(1), models.TINY)
        told = acceptance.measured(plan, steps, models.TINY, 64, result)
        self.assertEqual((len(told["losses"]), told["tokens_s"]), (2, 64))
        self.assertIn("ended at its deadline", told["cut_short"])

    def test_a_tax_is_measured_on_as_many_layers_as_both_runs_have_room_for(self):
        s = self.Setting()
        self.assertEqual(acceptance.fitted(s, models.LLAMA_8B, 24 << 30, 32768), (models.LLAMA_8B, 24 << 30, None))
        s.there = {**s.there, "device": 76 << 30}
        model, limit, why = acceptance.fitted(s, models.LLAMA_8B, 24 << 30, 32768)
        self.assertEqual(model.layers, 16)
        self.assertLess(16 * model.parameters(), 76 << 30)
        self.assertAlmostEqual(limit / (24 << 30), model.parameters() / models.LLAMA_8B.parameters(), places=6)
        self.assertIn("16 of 32 layers", why)

    def test_the_largest_size_that_fits_and_ends_in_time(self):
        slow, quick = self.PLAN | {"step_time_s": 70.0}, self.PLAN | {"step_time_s": 10.0}
        s = self.Setting((slow, [], {}), stages.Failed("refused"), (quick, [], {}), (quick, self.STEPS, {}))
        s.there = {**s.there, "device": 100 << 30}
        told = acceptance.size(s, stages.Deadline(200), [40, 20, 18, 16], 12, "split", True)
        self.assertEqual((told["planned"]["billions"], told["loss_fell"]), (16, True))
        for said, why in zip(told["passed_over"], ("40B: .* there is room", "20B: would end in 410 s", "18B: refused"), strict=True):
            self.assertRegex(said, why)
        with self.assertRaisesRegex(stages.Failed, "no size"):
            acceptance.size(s, stages.Deadline(200), [400], 12, "split", False)


class Plans(unittest.TestCase):
    def test_for_a_machine_that_is_not_here(self):
        profile = {f"{name}_bytes_s": 5e9 for name in ("disk_read", "disk_write", "disk_both", "memory_copy", "memory_stream")}
        profile |= {f"matmul_{dtype}_flop_s": 6e14 for dtype in ("fp32", "bf16", "fp64")}
        profile |= {"compute_beside_copy": 1, "compute_beside_disk": 1, "disk_latency_s": 1e-4, "device": "cuda:0", "threads": 16,
                    "device_stream_bytes_s": 4e12, "upload_bytes_s": 5e10, "download_bytes_s": 5e10, "measured_at": "elsewhere"}
        file, out = FOLDER / "elsewhere.json", FOLDER / "plans.json"
        file.write_text(json.dumps(profile))
        subprocess.run([ROOT / "bench/gpu.sh", "size", "--plan", "--machine-profile", file, "--folder", BUILD, "--scratch", FOLDER / "plans",
                        "--out", out, "--patience", os.environ.get("TERRACE_PATIENCE", "5")], capture_output=True, check=True)
        states = {s["name"]: s for s in json.loads(out.read_text())["stages"]}
        self.assertEqual(states.pop("machine profile")["state"], "skipped")
        self.assertEqual({s["state"] for s in states.values()}, {"done"}, states)
        self.assertGreater(states["small states"]["result"]["parameters"], 40e9)


class Models(unittest.TestCase):
    def test_have_the_sizes_that_they_are_called_by(self):
        for model, parameters in ((models.LLAMA_1B, 1_235_814_400), (models.LLAMA_3B, 3_212_749_824), (models.LLAMA_8B, 8_030_261_248)):
            self.assertEqual(model.parameters(), parameters)
        self.assertEqual(models.of_size(40).parameters() > 40e9, True)
        self.assertEqual(models.of_size(40).parameters() < 41e9, True)


class Rehearsal(unittest.TestCase):
    """Every stage on the CPU device: done, or skipped because this machine lacks something, and never failed. The calls have one scratch
    folder, as on a GPU: only the first one measures the machine."""

    def states(self, call, *words):
        """The stages of a call that ends well, by name."""
        out = FOLDER / f"{call}.json"
        done = subprocess.run([ROOT / "bench/gpu.sh", call, "--small", "--device", "cpu", "--folder", BUILD, "--tests", BUILD / "tests",
                               "--out", out, "--patience", os.environ.get("TERRACE_PATIENCE", "5"), *words], capture_output=True, text=True, check=False)
        record = json.loads(out.read_text())
        self.assertEqual(done.returncode, 0, json.dumps(record, indent=1)[-6000:] + done.stderr)
        return {s["name"]: s for s in record["stages"]}

    def rehearse(self, call, must):
        states = self.states(call, "--scratch", FOLDER / "scratch")
        self.assertEqual({n for n, s in states.items() if s["state"] not in ("done", "skipped")}, set())
        for name in must:
            self.assertEqual(states[name]["state"], "done", states[name])
        return states

    def test_a_stage_alone_makes_its_scratch_folder(self):
        states = self.states("speed", "--only", "1B resident", "--scratch", FOLDER / "made/here", "--disk", FOLDER / "disk-elsewhere")
        self.assertEqual({name: s["state"] for name, s in states.items()}, {"1B resident": "done"})

    def test_speed(self):
        states = self.rehearse("speed", ["bits", "kernels", "1B resident", "8B resident", "8B, 24 GiB, 32k tokens", "8B, 64 GiB, 128k tokens, clipped"])
        for ways in states["bits"]["result"].values():
            self.assertEqual(len({hash for way, hash in ways.items() if way != "attention"}), 1)
        self.assertGreater(states["kernels"]["result"]["core_devices_test"]["ran"], 10)
        logs = list((FOLDER / "gpu-speed-logs").glob("*-terrace.txt"))
        self.assertGreater(len(logs), 10)
        tax = states["8B, 24 GiB, 64k tokens, clipped"]["result"]
        self.assertGreater(tax["offloaded"]["offload"]["h2d_bytes"], 0)
        self.assertGreater(tax["share"], 0)

    def test_size(self):
        states = self.rehearse("size", ["fp32 states without disk", "fp32 states", "small states", "1B, part of the state on disk"])
        self.assertTrue(states["small states"]["result"]["loss_fell"])

    def test_rivals(self):
        self.rehearse("rivals", ["3B beside FSDP2 with CPU offload", "3B beside ZeRO-Offload", "3B beside ZeRO-Infinity"])


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
