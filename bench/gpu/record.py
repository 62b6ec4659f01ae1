"""The record of a call: an entry for each row, on disk before the next command begins.

A row has parts, which run one after another. Each may take an equal share of the time that the row has left, and returns its
figures. Whatever happens to a part, its figures say so ("error", "cut" or "missing") and the next part runs.
"""

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time
import traceback

ASKED_S, KILLED_S = 2, 3  # how long a command may take to end once it was asked to, and once it was killed
MISSING = 77  # the exit code of a script that lacks a library; its last line names it
TAIL = 2000  # characters of a failed command's output in the record; its log has all


class Missing(Exception):
    """This machine lacks a program or a library; the text names it."""


class Failed(Exception):
    """A command or a check failed; the text says how."""


class Cut(Exception):
    """A command reached its deadline. `out` is what it had printed."""

    def __init__(self, why, out):
        super().__init__(why)
        self.out = out


class Part:
    """The time and the log of one part of a row, and the entries of the row's commands."""

    def __init__(self, limit_s, commands=None, logs="logs/row", changed=lambda: None):
        self.end = time.monotonic() + limit_s
        self.commands = [] if commands is None else commands
        self.logs, self.changed = pathlib.Path(logs), changed

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def run(self, words, environment=None):
        """Returns the standard output of a command. At the deadline, ends it and all its children."""
        words = [str(word) for word in words]
        log = self.logs.with_name(f"{self.logs.name}-{len(self.commands) + 1:02}-{pathlib.Path(words[0]).stem}.txt")
        log.parent.mkdir(parents=True, exist_ok=True)
        told = {"command": shlex.join(words), "log": f"{log.parent.name}/{log.name}"}
        self.commands.append(told)
        self.changed()
        limit, begin = self.left(), time.monotonic()
        with open(log, "w+", errors="replace") as out, open(log.with_suffix(".err"), "w+", errors="replace") as err:
            process = subprocess.Popen(words, stdout=out, stderr=err, start_new_session=True, env={**os.environ, **(environment or {})})
            try:
                told["exit"] = exit_code(process, limit)
            finally:  # nothing that a command started outlives it, even if this script is being ended
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver: later rows still have their time
                    process.wait(KILLED_S)
                told["seconds"] = round(time.monotonic() - begin, 2)
            out.seek(0), err.seek(0)
            printed, said = out.read(), err.read()
        if told["exit"] == 0:
            return printed
        told["tail"] = (printed[-TAIL:] + said[-TAIL:]).splitlines()
        if told["exit"] is None:
            raise Cut(f"cut at {limit:.0f} s", printed)
        if told["exit"] == MISSING:
            raise Missing(told["tail"][-1])
        raise Failed(f"{pathlib.Path(words[0]).name} ended with {told['exit']}: " + " | ".join(told["tail"][-3:]))


def exit_code(process, limit_s):
    """None if the command did not end in time. It is asked first, because a bench that is interrupted prints what it has."""
    asked_s = min(ASKED_S, limit_s / 4)
    try:
        return process.wait(limit_s - asked_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(asked_s)
    return None


def figures_of(work, part):
    """What a part returns, or why it returns nothing."""
    try:
        return work(part)
    except Missing as why:
        return {"missing": str(why)}
    except Cut as why:
        return {"cut": str(why)}
    except Failed as why:
        return {"error": str(why)}
    except Exception:  # whatever the error, the next part runs
        return {"error": traceback.format_exc()[-TAIL:]}


def state_of(parts):
    """How a row with these figures has ended, and why."""
    bad = {name: (kind, figures[kind]) for name, figures in parts.items() for kind in ("error", "cut", "missing") if kind in figures}
    kinds = [kind for kind, _ in bad.values()]
    state = "failed" if "error" in kinds else "cut" if "cut" in kinds else "left out" if parts and len(kinds) == len(parts) else "done"
    return state, "; ".join(f"{name}: {why}" for name, (_, why) in bad.items())


class Record:
    """`after`: called when a row has ended, before the next one begins. Rows of an earlier call in the same folder are kept."""

    def __init__(self, out, budget_s, about, patience=1, beside=contextlib.nullcontext, after=lambda rows: None):
        self.end = time.monotonic() + budget_s * patience
        self.file, self.about, self.patience, self.beside, self.after = out / "gpu.json", about, patience, beside, after
        out.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(self.file.read_text())["rows"] if self.file.exists() else []
        self.rows = {entry["row"]: entry for entry in earlier}

    def write(self):
        """Replaces the whole file: a reader finds it complete even if this script is killed."""
        fresh = self.file.with_suffix(".new")
        rows = [self.rows[number] for number in sorted(self.rows)]
        fresh.write_text(json.dumps({**self.about, "rows": rows}, indent=1, ensure_ascii=False) + "\n")
        fresh.replace(self.file)

    def run(self, number, row, setting):
        """Returns the row's state."""
        whole, left = row.seconds * self.patience, max(0.0, self.end - time.monotonic())
        limit, begin = min(whole, left), time.monotonic()
        entry = {"row": number, "name": row.name, "check": row.check, "limit_s": round(limit, 1), "state": "running", "why": "",
                 "leaves_out": row.leaves_out, "result": {}, "commands": []}
        self.rows[number] = entry
        self.write()
        try:
            if limit < whole / 2:
                entry |= {"state": "left out", "why": f"{left:.0f} s are left, and it may take {whole:.0f}"}
            else:
                with self.beside(entry):
                    self.run_parts(entry, row.parts(setting), begin + limit)
                entry["state"], entry["why"] = state_of(entry["result"])
                entry["verdict"] = row.judge(entry["result"])
        except Failed as why:  # by the judge
            entry |= {"state": "failed", "why": "; ".join(filter(None, [str(why), entry["why"]]))}
        except Exception:
            entry |= {"state": "failed", "why": traceback.format_exc()[-TAIL:]}
        except BaseException:
            entry |= {"state": "cut", "why": "the script was ended"}
            raise
        finally:
            entry["seconds"] = round(time.monotonic() - begin, 2)
            self.write()
            self.after(self.rows)
        print(f"{number:>3}  {entry['state']:<8}  {entry['seconds']:6.1f} s  {row.name}" + (f"  ({entry['why']})" if entry["why"] else ""), flush=True)
        return entry["state"]

    def run_parts(self, entry, parts, end):
        for position, (name, work) in enumerate(parts.items()):
            share = max(0.0, end - time.monotonic()) / (len(parts) - position)
            part = Part(share, entry["commands"], self.file.parent / "logs" / f"{entry['row']:02}", self.write)
            entry["result"][name] = figures_of(work, part)
            self.write()
