#!/usr/bin/env python3
"""Checks that rooms include only what stands below them, and that no folder has more than 40 files beside each other.

A room is a folder; ROOMS lists those of each building from the lowest to the highest. A file belongs to the room whose folder
holds it or one of its parents; "." is the building's own folder.

  tests/room_checks.py               exit code 1 if an include points upward or a folder is too full
  tests/room_checks.py --self-test   plants such faults in a copy and expects them to be found
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

ROOMS = {
    "": "core memory offload optimizers parallel tests bench examples",
    "core": "base machine device math cuda profile",
    "offload": "io store move manager",
    "optimizers": "formats . loops rules layerwise cuda",
    "parallel": "comm mesh model layers program pipeline map passes state walk plan run train",
    "parallel/comm": ". threads mpi nccl",
    "parallel/layers": "parts branch attention mlp ends .",
    "parallel/plan": ". search",
    "bench": ". disk link compute ranks",
    "examples": "lm terrace",
    "examples/lm": "unpack weights models families data tokenizer chat generate",
    "examples/lm/tokenizer": "words .",
}
APART = {("optimizers", "offload")}  # on one level
MOST_FILES = 40
SOURCE = re.compile(r"\.(h|cpp|inl|cu|cuh)$")
# examples/terrace is not listed: its rooms include each other, because RunConfig is one structure.


def room_of(file, building):
    """The room of a file in a building, or None where it is elsewhere."""
    prefix = building + "/" if building else ""
    if not file.startswith(prefix):
        return None
    rest = file[len(prefix):]
    return rest.split("/")[0] if "/" in rest else "."


def faults(root, files):
    includes = []
    for file in files:
        if SOURCE.search(file):
            text = (root / file).read_text()
            includes += [(file, name) for name in re.findall(r'#include [<"]terrace/([^>"]+)[>"]', text)]
    for building, rooms in ROOMS.items():
        order = rooms.split()
        for file, name in includes:
            here, there = room_of(file, building), room_of(name, building)
            if here is None or there is None or here == there or here not in order:
                continue
            if building == "" and here == "tests" and not file.startswith("tests/doubles/"):
                continue  # tests may use everything
            if there not in order:
                yield f"{file} includes {name}, which is in no room of {building or 'the top level'}"
            elif order.index(there) > order.index(here) or (here, there) in APART:
                yield f"{file} includes {name}: {building or 'the top level'} has {there} above {here}"
    counts = collections.Counter(str(pathlib.PurePosixPath(file).parent) for file in files if SOURCE.search(file))
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES:
            yield f"{folder} has {count} files beside each other, more than {MOST_FILES}: it needs rooms"


def sources(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [file for file in listed.split("\n") if (root / file).is_file()]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        planted = {"core/base/a.h": "#include <terrace/core/math/b.h>\n", "core/math/b.h": "",
                   "memory/c.h": "#include <terrace/parallel/run/d.h>\n", "parallel/run/d.h": "#include <terrace/core/base/a.h>\n"}
        planted |= {f"memory/full/{i}.h": "" for i in range(MOST_FILES + 1)}
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = list(faults(root, list(planted)))
        if len(found) != 3:
            sys.exit(f"room_checks.py finds {len(found)} of 3 planted faults: {found}")


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        self_test()
        sys.exit(0)
    here = pathlib.Path(__file__).resolve().parent.parent
    found = list(faults(here, sources(here)))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
