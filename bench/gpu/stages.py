"""Stages with deadlines, whose results are on disk before the next one begins.

A stage is a function that gets its deadline and returns what it found. One that raises is recorded as failed and the next one
runs; one for which too little time is left, or whose program or library is missing, is recorded as skipped.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import traceback


KILLED_S = 10  # how long a killed command may take to end


class Skipped(Exception):
    """A stage cannot run here; the text says why."""


class Failed(Exception):
    """A command failed; the text has the end of its output."""


class Deadline:
    def __init__(self, seconds, keep=lambda result: None):
        self.end = time.monotonic() + seconds
        self.keep = keep  # keep: saves a stage's result so far, so that it is on disk before the next part begins

    def left(self):
        return max(0.0, self.end - time.monotonic())


class Stages:
    def __init__(self, call, out, budget_s, about):
        self.deadline = Deadline(budget_s)
        self.out = pathlib.Path(out)
        self.record = {"call": call, "began": time.strftime("%Y-%m-%dT%H:%M:%S"), "budget_s": budget_s, **about, "stages": []}
        self.write()

    def write(self):
        """Replaces the whole file, so that a reader finds all earlier stages even while a stage runs or after this script was killed."""
        fresh = self.out.with_suffix(".new")
        fresh.write_text(json.dumps(self.record, indent=1) + "\n")
        fresh.replace(self.out)

    def run(self, name, needs_s, limit_s, work):
        """`needs_s`: if less time than this is left, the stage is skipped."""
        limit = min(limit_s, self.deadline.left())
        stage = {"name": name, "limit_s": round(limit, 1)}
        self.record["stages"].append(stage)
        begin = time.monotonic()
        if limit < needs_s:
            stage |= {"state": "skipped", "why": f"{limit:.0f} s are left, and it needs {needs_s}"}
        else:
            stage["state"] = "running"
            self.write()

            def keep(result):
                stage["result"] = result
                self.write()

            try:
                stage["result"] = work(Deadline(limit, keep))
                stage["state"] = "done"
            except Skipped as why:
                stage |= {"state": "skipped", "why": str(why)}
            except Exception as error:  # whatever the error, the next stage runs
                told = str(error) if isinstance(error, Failed) else traceback.format_exc()
                stage |= {"state": "failed", "error": told[-4000:]}
            except BaseException:
                stage["state"] = "cut"
                self.write()
                raise
        stage["seconds"] = round(time.monotonic() - begin, 2)
        self.write()
        print(f"{stage['state']:>8}  {stage['seconds']:7.1f} s  {name}" + (f"  ({stage['why']})" if "why" in stage else ""), flush=True)

    def failed(self):
        return [s["name"] for s in self.record["stages"] if s["state"] == "failed"]


class Logs:
    """Keeps all output of every command, one file each: time on a GPU is too scarce to run a command again for its message."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.count = 0

    def next(self, name):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count += 1
        return self.folder / f"{self.count:03}-{name}.txt"


def run(command, deadline, environment=None, logs=None, name=None):
    """The standard output of a command; at the deadline, the command is ended with all its children. `logs` keeps its whole output under
    `name`, or under the name of the program."""
    command = [str(word) for word in command]
    with contextlib.ExitStack() as files:
        if logs:
            log = logs.next(name or pathlib.Path(command[0]).name)
            out, err = (files.enter_context(open(log.with_suffix(suffix), "w+", errors="replace")) for suffix in (".txt", ".err"))
        else:
            out, err = (files.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2))
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, env={**os.environ, **(environment or {})})
        try:
            process.wait(timeout=max(1.0, deadline.left()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(timeout=KILLED_S)
            except subprocess.TimeoutExpired:  # it hangs in a driver: later stages still have their time
                pass
            raise Failed(f"{' '.join(command)}\nwas ended at its deadline\n{end_of(out, 1500)}\n{end_of(err, 2000)}") from None
        except BaseException:  # this script is being ended: end everything that it started
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if process.returncode != 0:
            raise Failed(f"{' '.join(command)}\nended with {process.returncode}\n{end_of(out, 1500)}\n{end_of(err, 2000)}")
        out.seek(0)
        return out.read()


def end_of(file, characters):
    file.seek(0)
    return file.read()[-characters:]
