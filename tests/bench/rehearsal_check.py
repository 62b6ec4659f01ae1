"""What the rehearsal of bench/gpu.sh (tests/rehearsal.sh) left behind: every stage of every call, with how it ended and why.

    rehearsal_check.py RESULTS PLANTED
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
import main as acceptance  # noqa: E402

# Skipped on a machine without PyTorch and NVIDIA's tools; everything else must be done.
SKIPPED = {"matrix peak, 10 s": "PyTorch", "sanitizer": "compute-sanitizer"}
# Faults planted in the test programs of the second folder, as its record must report them.
PLANTED = {"gpu_math_test": ("error", "ended with 3"), "gpu_kernels_test": ("error", "ended at its deadline"),
           "gpu_layers_test": ("missing", "is not in")}
wrong = []


def demand(holds, text):
    if not holds:
        wrong.append(text)


def stages_of(folder, call, status):
    record = json.loads((folder / f"gpu-{call}.json").read_text())
    told = int((folder / f"{call}.status").read_text())
    demand(told == status, f"{call} ended with {told}, not {status}")
    names = [name for name, *_ in acceptance.CALLS[call][0]]
    demand([s["name"] for s in record["stages"]] == names, f"{call} has other stages than {names}")
    for stage in record["stages"]:
        print(f"{folder.name:>8} {call:>7} {stage['state']:>8}  {stage['name']}" + (f"  ({stage['why']})" if "why" in stage else ""))
    return {s["name"]: s for s in record["stages"]}


def expect_ends(call, stages, failed=()):
    for name, stage in stages.items():
        want = "failed" if name in failed else "skipped" if name in SKIPPED else "done"
        demand(stage["state"] == want, f"{call}, {name}: {stage['state']}, not {want}: {stage.get('why', stage.get('error', ''))}")
        demand({"done": "result", "skipped": "why", "failed": "error"}.get(stage["state"]) in stage, f"{call}, {name}: nothing told")
        if name in SKIPPED:
            demand(SKIPPED[name] in stage.get("why", ""), f"{call}, {name} was skipped for another reason: {stage.get('why')}")


def main():
    results, planted = map(pathlib.Path, sys.argv[1:3])
    for call in acceptance.CALLS:
        stages = stages_of(results, call, 0)
        expect_ends(call, stages)
        for name, stage in stages.items():
            if "beside" in name:
                told = stage.get("result", {})
                demand(told.get("terrace") and "PyTorch" in told.get("rival_absent", ""), f"{name}: {told}")
        if call == "speed":
            for program, told in stages["kernels"].get("result", {}).items():
                demand(told.get("ran", 0) > 10 and not told.get("failed"), f"{program}: {told}")
            for model, ways in stages["bits"].get("result", {}).items():
                demand(len({bits for way, bits in ways.items() if way != "attention"}) == 1, f"{model}: {ways}")
    stages = stages_of(planted, "speed", 1)
    expect_ends("speed", stages, failed=["kernels"])
    told = stages["kernels"].get("result", {})
    for program, (where, text) in PLANTED.items():
        demand(text in told.get(program, {}).get(where, ""), f"{program}, planted: {told.get(program)}")
        demand(program in stages["kernels"].get("error", ""), f"{program} is not named: {stages['kernels'].get('error')}")
    demand(told.get("core_devices_test", {}).get("ran", 0) > 10, f"core_devices_test beside them: {told.get('core_devices_test')}")
    for text in wrong:
        print(f"error: {text}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
