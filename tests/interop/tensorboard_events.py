"""What terrace writes for TensorBoard and Prometheus, read by their own libraries (PyPI: tensorboard, prometheus_client).

  python3 tests/interop/tensorboard_events.py build/release/bin/terrace

Trains a small model, resumes it, and compares every number of the event file and of the Prometheus file with metrics.jsonl.
Without the libraries it says so and ends with 0.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    from prometheus_client.parser import text_string_to_metric_families
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
except ImportError as absent:
    print(f"skipped: {absent}")
    sys.exit(0)

STEPS = 6
STOP_AFTER = 3


def flat(step):
    """{"mem": {"x": 1}, "loss": 2} becomes {("mem", "x"): 1, ("loss",): 2}."""
    out = {}
    for key, value in step.items():
        if isinstance(value, dict):
            out.update({(key, inner): number for inner, number in value.items()})
        elif key not in ("xxh3", "skipped"):
            out[(key,)] = value
    return out


def as_float(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "corpus").write_bytes(b"It was a bright cold day in April. " * 400)
        words = [program, "train", "--data", "corpus", "--layers", "2", "--hidden", "32", "--heads", "2", "--seq-len", "32",
                 "--batch-size", "2", "--threads", "1", "--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB",
                 "--lr-schedule", "constant", "--eval-interval", "2", "--out-dir", "run", "--tensorboard",
                 "--prometheus", "run.prom", "--resume", "auto"]
        for steps in (STOP_AFTER, STEPS):
            subprocess.run(words + ["--steps", str(steps)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        lines = [flat(json.loads(line)) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [line[("step",)] for line in lines] == list(range(1, STEPS + 1))

        file = folder / "run" / "events.out.tfevents.terrace"
        raw = list(LegacyEventFileLoader(str(file)).Load())
        assert [event.step for event in raw] == list(range(STEPS + 1)), [event.step for event in raw]
        board = EventAccumulator(str(folder / "run"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = board.Tags()["scalars"]
        compared = 0
        for tag in tags:
            for scalar in board.Scalars(tag):
                wanted = lines[scalar.step - 1][tuple(tag.split("/"))]
                assert scalar.value == as_float(wanted), (tag, scalar, wanted)
                compared += 1
        assert compared == sum(len(line) - 1 for line in lines), (compared, "all but the steps themselves")
        print(f"tensorboard: {len(tags)} tags, {compared} scalars of {STEPS} steps equal, none twice")

        families = list(text_string_to_metric_families((folder / "run.prom").read_text()))
        last = {"terrace_" + "_".join(key): value for key, value in lines[-1].items() if key[0] != "stall"}
        stalls = {key[1]: value for key, value in lines[-1].items() if key[0] == "stall"}
        samples = 0
        for family in families:
            assert family.type == "gauge" and family.documentation.endswith(")."), family
            for sample in family.samples:
                assert sample.labels["run"] == "run"
                wanted = stalls[sample.labels["cause"]] if sample.name == "terrace_stall" else last[sample.name]
                assert sample.value == wanted, (sample, wanted)
                samples += 1
        assert samples == len(last) + len(stalls), (samples, len(last), len(stalls))
        print(f"prometheus: {len(families)} families, {samples} samples equal")


main(str(pathlib.Path(sys.argv[1]).resolve()))
