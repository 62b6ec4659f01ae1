"""What rehearsals of bench/gpu.sh leave behind: every row of every record, with how it ended and why.

    rehearsal_check.py RESULTS [PLANTED]      PLANTED: of a call with faults in the test programs
"""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
import main as script  # noqa: E402

# What a machine may lack. Everything else must be done.
MAY_LACK = r"(PyTorch|DeepSpeed|nvidia-smi|compute-sanitizer) is not installed|the CPU device has no link and no GPU"
PLANTED = {"products": ("error", "ended with 3"), "packing": ("cut", "cut at"), "adding": ("error", "gpu_layers_test is not in")}
wrong = []


def demand(holds, text):
    if not holds:
        wrong.append(text)


def rows_of(folder):
    record = json.loads((folder / "gpu.json").read_text())
    for row in record["rows"]:
        print(f"{folder.name:>8} {row['state']:>8}  {row['name']}" + (f"  ({row['why']})" if row["why"] else ""))
    return {row["name"]: row for row in record["rows"]}, record["device"] != "cpu"


def check_rehearsal(folder):
    rows, on_gpu = rows_of(folder)
    demand(set(rows) >= {row.name for row in script.TABLE}, f"only {list(rows)} ran")
    for name, row in rows.items():
        lacks = [figures["missing"] for figures in row["result"].values() if "missing" in figures]
        want = "left out" if row["result"] and len(lacks) == len(row["result"]) else "done"
        demand(row["state"] == want, f"{name}: {row['state']}, not {want}: {row['why']}")
        demand(all(re.fullmatch(MAY_LACK, why) for why in lacks), f"{name} lacks {lacks}")
        for part, figures in row["result"].items():
            demand(figures, f"{name}, {part}: nothing told")
            demand("named" not in figures or figures["named"] and (figures["ran"] or not on_gpu), f"{name}, {part}: no test ran")
    demand(len(rows["budgets"].get("verdict", [])) == 2, f"budgets: {rows['budgets'].get('verdict')}")
    demand(rows["offloaded"]["result"]["clip 1"].get("offload", {}).get("h2d_bytes"), "the offloaded run moved nothing")
    demand(len(list((folder / "logs").glob("*-terrace.txt"))) > 10, "there are no logs")
    demand((folder / "table.md").exists() and list(folder.glob("machine*.json")), "there is no table or no profile")


def check_planted(folder):
    rows, _ = rows_of(folder)
    demand([row["state"] for row in rows.values()] == ["failed", "failed", "done"], "the faults cost another row its turn, or were not seen")
    for part, (kind, text) in PLANTED.items():
        demand(text in rows["mends"]["result"].get(part, {}).get(kind, ""), f"{part}, planted: {rows['mends']['result'].get(part)}")


check_rehearsal(pathlib.Path(sys.argv[1]))
if len(sys.argv) > 2:
    check_planted(pathlib.Path(sys.argv[2]))
for text in wrong:
    print(f"error: {text}", file=sys.stderr)
sys.exit(1 if wrong else 0)
