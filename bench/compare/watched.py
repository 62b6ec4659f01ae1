"""Runs one program and watches its whole process tree from outside, the same way for every side of a comparison: its peak resident memory
and the bytes that it has read from and written to disks after each training step."""

import json
import os
import pathlib
import subprocess
import time

POLL_S = 0.05  # short compared with a step; reading a process tree takes under a millisecond


class Failed(Exception):
    """The program ended with an error; the text is the end of its output."""


def tree(root):
    """The process and all its descendants."""
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                left += [int(word) for word in file.read_text().split()]
            except OSError:
                pass  # that thread has ended
    return found


def fields(pid, name):
    """"name: number" lines of a file in /proc/PID; empty if the process has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/{name}").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key: int(rest.split()[0]) for key, rest in pairs if rest.split() and rest.split()[0].isdigit()}


def look(root):
    """Sums over the process tree: high-water marks of resident memory, bytes read from and written to disks."""
    resident = read = written = 0
    for pid in tree(root):
        resident += 1024 * fields(pid, "status").get("VmHWM", 0)
        io = fields(pid, "io")
        read, written = read + io.get("read_bytes", 0), written + io.get("write_bytes", 0)
    return resident, read, written


def complete_lines(file):
    try:
        return file.read_text().count("\n")
    except OSError:
        return 0


def run(command, steps_file, log_file, environment, warm_up):
    """Runs the command, which appends one line of JSON per step to steps_file. Returns the losses, the seconds of every step, the peak
    resident bytes, and the bytes read and written per step after the warm-up."""
    with open(log_file, "w", encoding="utf-8") as log:
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, env=environment)
    peak, moved = 0, {}  # moved: bytes so far, by number of finished steps
    try:
        while True:
            # wait4 instead of poll(): it also returns the exact peak of the largest process in the tree.
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            resident, read, written = look(process.pid)
            peak = max(peak, resident)
            moved.setdefault(complete_lines(steps_file), (read, written))
            time.sleep(POLL_S)
    finally:
        if process.returncode is None:  # an interrupt
            process.kill()
    if process.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} exited with {process.returncode}\n" + pathlib.Path(log_file).read_text()[-3000:])
    steps = [json.loads(line) for line in steps_file.read_text().splitlines()]
    first, last = moved.get(warm_up), moved[max(moved)]
    count = max(moved) - warm_up
    a_step = [(b - a) / count for a, b in zip(first, last)] if first and count > 0 else [float("nan")] * 2
    return {"losses": [step["loss"] for step in steps], "seconds": [step["step_time_s"] for step in steps],
            "peak": max(peak, 1024 * usage.ru_maxrss), "read": a_step[0], "written": a_step[1]}
