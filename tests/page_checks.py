#!/usr/bin/env python3
"""Checks that pages name only what exists: targets of links and anchors, files, tests, and the commands, flags and keys of examples.
The flags that terrace takes are those of docs/reference/flags.md, which the program writes.
   tests/page_checks.py              prints PAGE:LINE: what is wrong, and exits with 1 if anything is
   tests/page_checks.py --self-test  plants one fault of each kind in a page and demands that each is found"""
import fnmatch
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Flags of other programs in the pages, and names that look like ours. Flags of scripts are read from the scripts.
OTHER_FLAGS = {
    "apt": "--autoremove",
    "cmake": "--build --install --preset --prefix --target",
    "ctest": "--output-on-failure --test-dir",
    "docker": "--ulimit",
    "Google Benchmark": "--benchmark_repetitions",
    "fio": "--directory --unlink",
    "Hugging Face's hf": "--local-dir",
    "mpirun": "--allow-run-as-root --bind-to --hostfile --map-by --mca --oversubscribe",
    "pkg-config": "--cflags --libs --variable",
    "Slurm": "--exclusive --gpu-bind --gpus-per-task --mpi --ntasks-per-node --requeue --signal --time",
    "tensorboard": "--logdir",
    "a mistake, whose answer a page shows": "--learning-rate --stepz",
}
OF_OTHERS = {flag for flags in OTHER_FLAGS.values() for flag in flags.split()}
OTHER_NAMES = {"memory.max", "memory.high", "model.safetensors", "run.json", "run.toml", "assistant_only_loss", "huggingface_hub",
               "cudaStreamCreateWithPriority", "mpi_yield_when_idle", "process_vm_readv"}
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")
LAUNCHERS = {"mpirun", "mpiexec", "srun", "env", "sudo", "time", "exec"}
SOURCE = re.compile(r"[\w./*{},-]+\.(?:h|cpp|cu|inl|py|sh|cmake)")
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


class Repository:
    """The names that pages may use."""

    def __init__(self):
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout.split("\n")
        self.files = {file for file in listed if file and (ROOT / file).exists()}
        self.folders = {str(parent) for file in self.files for parent in pathlib.PurePath(file).parents} - {"."}
        self.top = {file.split("/")[0] for file in self.files if "/" in file}
        tests = "\n".join(self.text(file) for file in self.files if file.startswith("tests/") and file.endswith(".cpp"))
        self.tests = {f"{suite}.{test}" for suite, test in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", tests)}
        lists = "\n".join(self.text(file) for file in self.files if file.startswith("tests/") and file.endswith("CMakeLists.txt"))
        self.programs = set(re.findall(r"(?:terrace_test\(|NAME )(\w+)", lists))
        scripts = [self.text(file) for file in self.files if file.endswith((".sh", ".py")) and not file.endswith("page_checks.py")]
        self.script_flags = {flag for script in scripts for flag in FLAG.findall(script)}
        self.words = {word for file in self.files if not file.endswith((".md", ".png")) and not file.endswith("page_checks.py")
                      for word in re.findall(r"\w+", self.text(file))}
        self.metrics = set(re.findall(r"`([\w./]+)`", self.text("docs/reference/metrics.md")))
        self.read_flags(self.text("docs/reference/flags.md"))

    @staticmethod
    def text(file):
        return (ROOT / file).read_text(errors="replace")

    def script_flags_of(self, script):
        text = self.text(next(file for file in self.files if file.endswith(script)))
        return self.script_flags | self.flags if '"$@"' in text else set(FLAG.findall(text))  # it passes unknown flags on

    def read_flags(self, page):
        """The flags of each command, and the keys of each section of a TOML file."""
        self.commands, self.keys, taken = {"": set()}, {}, {}
        command = section = None
        for line in page.splitlines():
            if line.startswith("# "):
                command = ""
            elif line.startswith("## "):
                command, section = line[len("## terrace "):] if line.startswith("## terrace ") else None, None
                self.commands.setdefault(command, {"-h", "--help"})
            elif line.startswith("### ["):
                section = self.keys.setdefault(line[len("### ["):line.index("]")], set())
            elif (row := re.match(r"\| `(-[\w-]+(?:, --[\w-]+)?)", line)):
                flags = set(row[1].split(", "))
                if section is None:
                    self.commands[command] |= flags
                else:
                    section |= {flag[2:] for flag in flags}
            elif line.startswith("It takes"):
                taken[command] = set(FLAG.findall(line))
        self.commands.pop(None, None)
        settings = {"--" + key for keys in self.keys.values() for key in keys}
        for name, flags in taken.items():
            self.commands[name] |= flags or settings
        self.flags = settings.union(*self.commands.values())

    def has(self, path):
        """A file or folder by its whole name, or by the end of it; * and {a,b} as in a shell."""
        if (brace := re.search(r"\{([^}]*)\}", path)):
            return all(self.has(path[:brace.start()] + part + path[brace.end():]) for part in brace[1].split(","))
        path = re.sub(r"/[A-Z]+(/.*)?$", "", path)  # tests/fuzz/corpus/NAME
        path = path.rstrip("/").removeprefix("terrace/").removeprefix("../").removeprefix("./")
        if "*" in path:
            return any(fnmatch.fnmatchcase(file, path) or fnmatch.fnmatchcase(file, "*/" + path) for file in self.files)
        return path in self.files or path in self.folders or any(name.endswith("/" + path) for name in self.files | self.folders)


def slugs(text):
    """The anchors of a page, as GitHub makes them of its headings."""
    seen, out = {}, set()
    for kind, line, _ in lines_of(text):
        if kind != "text" or not (heading := re.match(r"#+ (.*)", line)):
            continue
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        out.add(slug if seen[slug] == 0 else f"{slug}-{seen[slug]}")
    return out


def lines_of(text):
    """(kind, line, number): kind is "text", "code", or the language of a fenced block."""
    fence = language = None
    indented = False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)\s*(\w*)", line)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = None
            else:
                yield language or "code", line, number
        elif mark:
            fence, language = mark[1], mark[2]
        else:
            indented = line.startswith("    ") and (indented or not before.strip())
            yield ("code" if indented else "text"), line, number
            indented = indented or (not line.strip() and indented)
        before = line


def commands_in(line):
    """The words behind `terrace` of each command of a line."""
    for part in re.split(r"\s(?:\|\|?|&&|>>?|2>|<|#)(?=\s|$)|;\s", line):
        try:
            words = shlex.split(part.strip().removeprefix("$ "))
        except ValueError:  # a quotation of several lines
            words = part.split()
        at = next((i for i, word in enumerate(words) if word == "terrace" or word.endswith("/terrace")), None)
        if at is not None and all(word in LAUNCHERS or "=" in word for word in words[:min(at, 1)]):
            yield words[at + 1:]


class Page:
    def __init__(self, repository, name, text):
        self.repository, self.name, self.text, self.faults = repository, name, text, []

    def fault(self, number, what):
        if (number, what) not in self.faults:
            self.faults.append((number, what))

    def check(self):
        section, code, begun = None, "", 0
        for kind, line, number in lines_of(self.text):
            for flag in FLAG.findall(line):
                if flag not in self.repository.flags | self.repository.script_flags | OF_OTHERS:
                    self.fault(number, f"no program and no script here has the flag {flag}")
            for variable in re.findall(r"\bTERRACE_[A-Z0-9_]*[A-Z0-9]", line):
                if variable not in self.repository.words:
                    self.fault(number, f"nothing reads the variable {variable}")
            if kind == "text":
                section = None
                self.check_links(line, number)
                for span in re.findall(r"`([^`]+)`", line):
                    self.check_name(span, number)
                    self.check_command(span, number)
                continue
            section = self.check_key(line, number, section)
            begun = begun if code else number
            code += line
            if code.endswith("\\"):
                code = code[:-1]
                continue
            self.check_command(code, begun)
            code = ""
        return self.faults

    def check_links(self, line, number):
        for link in re.sub(r"`[^`]*`", "`", line) and LINK.finditer(re.sub(r"`[^`]*`", "``", line)):
            target, _, anchor = (link[1] or link[2]).partition("#")
            if re.match(r"\w+:", target):
                continue
            file = pathlib.Path(self.name).parent / target if target else pathlib.Path(self.name)
            file = (ROOT / file).resolve()
            if not file.exists():
                self.fault(number, f"the link {link[1] or link[2]} leads to no file")
            elif anchor and file.suffix == ".md":
                text = self.text if not target else file.read_text()
                if anchor not in slugs(text):
                    self.fault(number, f"{target or 'this page'} has no heading for the anchor #{anchor}")

    def check_name(self, span, number):
        if span in OTHER_NAMES | self.repository.metrics:
            return
        if (test := re.fullmatch(r"(?:\w+/)?([A-Z]\w+)\.([A-Z]\w+[…*]?|\*)(?:/\S+)?", span)) and not SOURCE.fullmatch(span):
            if not any(fnmatch.fnmatchcase(name, f"{test[1]}.{test[2]}".replace("…", "*")) for name in self.repository.tests):
                self.fault(number, f"there is no test {span}")
        elif re.fullmatch(r"[a-z0-9_]+_test", span):
            if span not in self.repository.programs and not self.repository.has(span + ".cpp"):
                self.fault(number, f"there is no test program {span}")
        elif (key := re.fullmatch(r"(\w+)\.([a-z][a-z0-9-]*)", span)) and key[1] in self.repository.keys:
            if key[2] not in self.repository.keys[key[1]]:
                self.fault(number, f"[{key[1]}] has no key {key[2]}")
        elif SOURCE.fullmatch(span) or ("/" in span and span.split("/")[0] in self.repository.top and
                                        re.fullmatch(r"[\w./*{},-]+", span)):
            if not self.repository.has(span):
                self.fault(number, f"there is no file {span}")
        elif (name := re.fullmatch(r"(?:\w+::)*(\w+)(?:\(\))?", span)) and re.search("[a-z][A-Z]|[a-z]_[a-z]", name[1]):
            if name[1] not in self.repository.words:
                self.fault(number, f"nothing in the sources is called {name[1]}")

    def check_key(self, line, number, section):
        """The section of a TOML file that this line is in; None outside of terrace's sections."""
        if (head := re.fullmatch(r"\s*\[([\w.-]+)\]\s*(?:#.*)?", line)):
            return head[1] if head[1] in self.repository.keys else None
        if section and (key := re.match(r"\s*([\w-]+)\s*=", line)) and key[1] not in self.repository.keys[section]:
            self.fault(number, f"[{section}] has no key {key[1]}")
        return section

    def check_command(self, line, number):
        for script, behind in re.findall(r"(?:^|[\s/])((?:bench|cmake|examples|tests)/[\w/.-]+\.(?:sh|py))(?=\s|$)([^;|>]*)", line):
            if not self.repository.has(script):
                self.fault(number, f"there is no file {script}")
                continue
            for flag in set(FLAG.findall(behind)) - self.repository.script_flags_of(script):
                self.fault(number, f"{script} does not take {flag}")
        for words in commands_in(line):
            self.check_words(words, number)

    def check_words(self, words, number):
        known = self.repository.commands
        name = words[0] if words else ""
        if name.startswith("-"):
            name = ""
        elif " ".join(words[:2]) in known:
            name = " ".join(words[:2])
        if name in ("…", "...") or name.isupper():  # any command
            return
        if name not in known:
            self.fault(number, f"terrace has no command {name}")
            return
        rest = words[len(name.split()):]
        if name == "launch" and (inner := next((i for i, word in enumerate(rest) if word in known), None)) is not None:
            self.check_words(rest[inner:], number)
            rest = rest[:inner]
        for at, word in enumerate(rest):
            flag = word.strip("[](),.").partition("=")[0]
            if FLAG.fullmatch(flag) and flag in self.repository.flags and flag not in known[name]:
                self.fault(number, f"terrace {name} does not take {flag}")
            if flag == "--set" and at + 1 < len(rest):
                section, _, key = rest[at + 1].partition("=")[0].rpartition(".")
                keys = self.repository.keys.get(section, set()) if section else set().union(*self.repository.keys.values())
                if key not in keys:
                    self.fault(number, f"--set: there is no key {rest[at + 1].partition('=')[0]}")


PLANTED = {  # lines with a fault, each with the text of the error; and a line without one
    "[a](no-such-page.md)": "leads to no file",
    "[a](#no-such-heading)": "no heading",
    "`core/no_such_file.h`": "no file",
    "`--no-such-flag`": "has the flag",
    "`Residency.NoSuchTest`": "no test",
    "`NoSuchSuite.*`": "no test",
    "`no_such_test`": "no test program",
    "`no_such_name()`": "nothing in the sources",
    "TERRACE_NO_SUCH_VARIABLE": "nothing reads",
    "    ./tests/no_such_script.sh": "no file",
    "    bench/commit_cost.py --once": "does not take",
    "    terrace trian --steps 1": "no command",
    "    terrace generate RUN --steps 1": "does not take",
    "    terrace launch -n 2 -- generate RUN --prompt a --steps 1": "does not take",
    "    terrace train --set train.stepz=1": "no key",
    "    [train]\n    stepz = 1": "no key",
    "`train.stepz`": "no key",
    "# A heading\n[a](#a-heading), `core/base/error.h`, `{core,memory}/*.h`, `--steps`, `train.steps`, `page_checks.py`": "",
    "    terrace launch -n 2 -- train --steps 1 --set train.steps=1 && mpirun --oversubscribe terrace bench nvme DIR --op read": "",
    "    [train]\n    steps = 1": "",
}


def pages_named_in(repository, text):
    """Where a source, a script or a message names a page that does not exist."""
    for number, line in enumerate(text.splitlines(), 1):
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", line):
            if page not in repository.files:
                yield number, f"there is no page {page}"


def self_test(repository):
    status = 0
    for line, wanted in PLANTED.items():
        faults = [what for _, what in Page(repository, "docs/README.md", line).check()]
        if [wanted in what for what in faults] != ([True] if wanted else []):
            print(f"error: of {line!r} is said {faults}, not {wanted or 'nothing'}", file=sys.stderr)
            status = 1
    if [what for _, what in pages_named_in(repository, "// docs/tour.md, docs/README.md")] != ["there is no page docs/tour.md"]:
        print("error: a page that a source names and that does not exist is not found", file=sys.stderr)
        status = 1
    return status


def main():
    repository = Repository()
    if sys.argv[1:] == ["--self-test"]:
        return self_test(repository)
    status = 0
    for name in sorted(repository.files):
        text = repository.text(name)
        page = name.endswith(".md")
        for number, what in Page(repository, name, text).check() if page else pages_named_in(repository, text):
            if not name.endswith("page_checks.py"):
                print(f"{name}:{number}: {what}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
