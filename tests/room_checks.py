#!/usr/bin/env python3
"""Checks that rooms include only what stands below them, that no folder has more than 40 files beside each other, and that the
headers of a room declare their names in the room's namespace; only those that docs/reference/headers.md lists do so in terrace itself.

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
    "optimizers": "formats . loops rules layerwise cuda state c",
    "parallel": "comm mesh model layers program pipeline map passes state walk plan run train",
    "parallel/comm": ". threads mpi nccl",
    "parallel/layers": "parts branch attention mlp ends .",
    "parallel/plan": ". search",
    "bench": ". disk compute link ranks",
    "examples": "lm terrace",
    "examples/lm": "unpack weights models families data tokenizer chat generate",
    "examples/lm/tokenizer": "words .",
}
APART = {("optimizers", "offload")}  # on one level
ABOVE_BOTH = ("optimizers/state/", "optimizers/c/")  # states in tiers, and both for C: targets of their own
MOST_FILES = 40
# The namespaces that headers of a folder, and of the folders in it, open. tests, bench and examples have one each.
NAMESPACES = {
    "core/base": "base files", "core/cuda": "cuda", "core/device": "device", "core/machine": "machine", "core/math": "math fp16_bits",
    "core/math/cpu": "cpu math", "core/profile": "profile", "memory": "memory",
    "offload/io": "io", "offload/store": "store", "offload/move": "offload", "optimizers": "rules", "optimizers/c": "c", "optimizers/cuda": "cuda rules",
    "parallel/comm": "comm", "parallel/comm/nccl": "comm cuda", "parallel/mesh": "mesh", "parallel/model": "model",
    "parallel/layers": "layers", "parallel/program": "orders", "parallel/pipeline": "pipeline", "parallel/map": "mapping",
    "parallel/passes": "passes", "parallel/state": "state", "parallel/walk": "walk", "parallel/plan": "planning pipeline",
    "parallel/run": "running", "parallel/train": "training",
}
PUBLIC = "docs/reference/headers.md"
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
            elif order.index(there) > order.index(here) or ((here, there) in APART and not file.startswith(ABOVE_BOTH)):
                yield f"{file} includes {name}: {building or 'the top level'} has {there} above {here}"
    counts = collections.Counter(str(pathlib.PurePosixPath(file).parent) for file in files if SOURCE.search(file))
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES:
            yield f"{folder} has {count} files beside each other, more than {MOST_FILES}: it needs rooms"
    yield from namespace_faults(root, files)


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def opened_namespaces(text):
    """(name, its text) of each namespace that a header opens at the margin."""
    return re.findall(r"^namespace ([\w:]+) \{\n(.*?)^\}(?!;)", without_comments(text), re.M | re.S)


def declares_names(body):
    """Whether it declares more than classes that other headers define, and classes of such classes."""
    rest = re.sub(r"^(class|struct) \w+;$", "", body, flags=re.M)
    return bool(re.sub(r"^class \w+::\w+ .*?^\};$", "", rest, flags=re.M | re.S).strip())


def namespace_faults(root, files):
    page = root / PUBLIC
    public = set(re.findall(r"`([a-z0-9_/]+\.h)`", page.read_text())) if page.exists() else set()
    for header in sorted(public):
        if not (root / header).is_file():
            yield f"{PUBLIC} names {header}, which does not exist"
    for file in files:
        folder = str(pathlib.PurePosixPath(file).parent)
        while folder not in NAMESPACES and "/" in folder:
            folder = folder.rsplit("/", 1)[0]
        if not file.endswith(".h") or folder not in NAMESPACES or file in public:
            continue
        spaces = tuple(f"terrace::{name}::" for name in NAMESPACES[folder].split())
        for name, body in opened_namespaces((root / file).read_text()):
            if name == "terrace" and declares_names(body):
                yield f"{file} declares names in terrace itself, and {PUBLIC} does not list it"
            elif name.startswith("terrace::") and not f"{name}::".startswith(spaces) and declares_names(body):
                yield f"{file} opens {name}, not {' or '.join(space[:-2] for space in spaces)}"


def sources(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [file for file in listed.split("\n") if (root / file).is_file()]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        planted = {"core/base/a.h": "#include <terrace/core/math/b.h>\n", "core/math/b.h": "",
                   "memory/c.h": "#include <terrace/parallel/run/d.h>\n", "parallel/run/d.h": "#include <terrace/core/base/a.h>\n"}
        planted |= {"memory/top.h": "namespace terrace {\nclass A;\nint f();\n}\n",
                    "memory/other.h": "namespace terrace::io {\nint g();\n}\n",
                    "memory/right.h": "namespace terrace {\nclass A;\n}\nnamespace terrace::memory {\nint f();\n}\n",
                    "memory/public.h": "namespace terrace {\nint h();\n}\n", PUBLIC: "| `memory/public.h`, `memory/gone.h` |\n"}
        planted |= {f"memory/full/{i}.h": "" for i in range(MOST_FILES + 1)}
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = list(faults(root, list(planted)))
        if len(found) != 6:
            sys.exit(f"room_checks.py finds {len(found)} of 6 planted faults: {found}")


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        self_test()
        sys.exit(0)
    here = pathlib.Path(__file__).resolve().parent.parent
    found = list(faults(here, sources(here)))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
