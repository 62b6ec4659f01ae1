#!/usr/bin/env python3
"""Counts the signs of a well-kept house, of the checkout or of a commit, so that a redesign can be compared before and after.

  python3 tests/house_signs.py [COMMIT...]

Functions are found by clang-format's layout: they begin and end at the margin. Refusals of pairs are rows of the
table of exclusions, and texts of the library that refuse one setting because of another one.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ["core", "memory", "offload", "optimizers", "parallel", "examples", "bench", "tests"]
LIBRARY = FOLDERS[:5]
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".inl"}
PAIR = re.compile(r"do(es)? not (work with|have)\b|cannot have|have yet|does not go with|(must be|leave out either)[^\"]*\"")
RULES = ["parallel/layers/parts/transformer.cpp", "parallel/mesh/degrees.cpp", "parallel/plan/check_request.cpp",
         "parallel/plan/check_tensor.cpp"]

# A setting of a run that is compared with a word: config.order == "vertical".
OPTION_WORD = re.compile(r"\b(?:c|c_|config|config_|given|given_)(?:\.\w+)+ [!=]= \"")


def sources(root, folder):
    return [f for f in sorted((root / folder).rglob("*")) if f.suffix in SOURCES and "build" not in f.parts]


def lines_of(files):
    return sum(len(f.read_text(errors="replace").splitlines()) for f in files)


def long_functions(files, most):
    count = 0
    for file in files:
        begin = None
        for number, line in enumerate(file.read_text().splitlines()):
            if re.match(r"[A-Za-z~].*[{]$", line) and not re.match(r"(namespace|class|struct|enum|extern)\b", line):
                begin = number
            elif line == "}" and begin is not None:
                count += number - begin + 1 > most
                begin = None
    return count


def virtuals(root, name):
    for file in (root / "parallel").rglob("layer.h"):
        body = re.search(r"^class %s[^;{]*\{(.*?)^\};" % name, file.read_text(), re.S | re.M)
        if body:
            return len(re.findall(r"^\s*(?:\[\[nodiscard\]\]\s*)?virtual (?!~)", body[1], re.M))
    return 0


def upward(root):
    check = root / "tests/room_checks.py"
    if not check.exists():
        return "no check"
    found = subprocess.run([sys.executable, "-B", check], cwd=root, capture_output=True, text=True)
    return "0" if found.returncode == 0 else str(len(found.stdout.splitlines()))


def largest_folder(root):
    files = collections.Counter(f.parent for folder in FOLDERS for f in sources(root, folder))
    folder, count = files.most_common(1)[0]
    return f"{count} ({folder.relative_to(root)})"


def ops(root):
    for file in (root / "parallel").rglob("program.h"):
        found = re.search(r"kOps = (\d+)", file.read_text())
        if found:
            return int(found[1])
    return 0


def files_of_operation(root, name):
    words = re.compile(name.replace("_", "_?"), re.I)
    return sum(bool(words.search(f.read_text(errors="replace"))) for f in sources(root, "core"))


def refusals(root):
    texts = [root / rule for rule in RULES if (root / rule).exists()]
    texts = texts or [f for f in sources(root, "parallel") if f.name in {pathlib.Path(r).name for r in RULES}]
    table = root / "parallel/mesh/features.cpp"
    rows = re.search(r"kExclusions\[\] = \{\n(.*?)^\};", table.read_text(), re.S | re.M) if table.exists() else None
    in_table = len(rows[1].splitlines()) if rows else 0
    return f"{in_table} in one table, {sum(len(PAIR.findall(f.read_text())) for f in texts)} elsewhere"


def named(root, word):
    files = [f for folder in FOLDERS[5:] for f in sources(root, folder)]
    return sum(bool(re.search(rf"\b{word}\b", f.read_text(errors="replace"))) for f in files)


def files_of_a_command(root, name):
    words = re.compile(rf'\b{name}_command\b|"{name}"')
    return sum(bool(words.search(f.read_text(errors="replace"))) for f in sources(root, "examples/terrace"))


def files_that_name(root, words, *folders):
    return sum(bool(re.search(words, f.read_text(errors="replace"))) for folder in folders for f in sources(root, folder))


def option_words(root):
    return sum(len(OPTION_WORD.findall(f.read_text())) for f in sources(root, "examples/terrace"))


def signs(root):
    layers = sources(root, "parallel/layers")
    yield "lines of each folder", ", ".join(f"{folder} {lines_of(sources(root, folder)):,}" for folder in FOLDERS)
    yield "lines of parallel/layers", f"{lines_of(layers):,}"
    yield "functions over 60 lines there", long_functions(layers, 60)
    yield "virtual functions of Layer", virtuals(root, "Layer")
    yield "operations of a program", ops(root)
    yield "files of core that name a math operation", f"{files_of_operation(root, 'softmax_rows_grad')}, with a " \
        f"vector loop of the CPU {files_of_operation(root, 'norm_weight_grad')}"
    yield "refusals of pairs of settings", refusals(root)
    yield "most source files in a folder", largest_folder(root)
    yield "includes that point upward", upward(root)
    for what, pattern in OF_A_PROGRAM.items():
        yield f"{what} in the library", of_a_program(root, pattern)
    yield "lines of examples/terrace", f"{lines_of(sources(root, 'examples/terrace')):,}"
    yield "files that name RunConfig", named(root, "RunConfig")
    yield "settings compared with a word", option_words(root)
    yield "files that name a command of the program", files_of_a_command(root, "top")
    yield "files of the program that name the setting of a flag", files_that_name(
        root, r"(\bbool |\.|::)tensorboard\b", "examples/terrace")
    yield "files that name a metrics sink", files_that_name(root, r"\bPrometheusSink\b", "examples/terrace")
    yield "files of the kit that name a number of a config.json", files_that_name(root, r"\bwindow_rope_theta\b", "examples/lm")
    at_the_top = {folder: names_at_the_top([f for f in sources(root, folder) if f.suffix == ".h"]) for folder in LIBRARY}
    for what in ("types", "functions and constants"):
        counts = {folder: len(found[what]) for folder, found in at_the_top.items()}
        yield f"{what} directly in terrace::", f"{sum(counts.values())} ({', '.join(f'{k} {v}' for k, v in counts.items())})"
    yield "headers of the library", sum(f.suffix == ".h" for folder in LIBRARY for f in sources(root, folder))


# Places of the library, the language-model kit included, that do what only a program should do.
OF_A_PROGRAM = {"exit codes": r"\bExit::|enum class Exit\b", "readers of the environment": r"\bgetenv\(",
                "messages to standard error": r"\b(say|fprintf|fputs|print)\(stderr\b|(?<![\w.:>])warn\("}


def of_a_program(root, pattern):
    files = [f for folder in [*LIBRARY, "examples/lm"] for f in sources(root, folder) if f.stem not in ("log", "notice")]
    found = [f for f in files for line in f.read_text().splitlines() if re.search(pattern, line.split("//")[0])]
    names = ", ".join(str(f.relative_to(root)) for f in dict.fromkeys(found))
    return f"{len(found)} ({names})" if 0 < len(set(found)) <= 4 else len(found)


# A name that a header declares at the margin, inside of `namespace terrace {`: a type, or a function or constant.
TYPE_NAME = re.compile(r"^(?:class|struct|enum class|using) (?:\[\[nodiscard\]\] )?(\w+)(?= (?:final |: |= |\{)| ?\{| :|$)")
OTHER_NAME = re.compile(r"^(?!(?:class|struct|enum|using|template|friend|namespace|return)\b)[A-Za-z_][\w:<>,&*\s\[\]]*?[\s&*](\w+)"
                        r"(?=\(|\s*=|\{|\[|;)")


def names_at_the_top(files):
    found = {"types": set(), "functions and constants": set()}
    for file in files:
        inside = False
        for line in file.read_text().splitlines():
            if line.startswith("namespace "):
                inside = line == "namespace terrace {"
            elif line.startswith("}  // namespace"):
                inside = False
            elif inside and (name := TYPE_NAME.match(line)):
                found["types"].add(name[1])
            elif inside and (name := OTHER_NAME.match(line)):
                found["functions and constants"].add(name[1])
    return found


def show(title, root):
    print(f"== {title}")
    for name, value in signs(root):
        print(f"{name}: {value}")


def main():
    here = pathlib.Path(__file__).resolve().parent.parent
    for commit in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "-C", here, "archive", commit], capture_output=True, check=True)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            show(commit, pathlib.Path(folder))
    if len(sys.argv) == 1:
        show("the checkout", here)


if __name__ == "__main__":
    main()
