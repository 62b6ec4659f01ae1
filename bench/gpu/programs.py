"""Runs GoogleTest programs, one after another, large ones in parts at the same time. Each runs even if an earlier one failed; the
stage then fails at the end.

A program that hangs loses only its own share of the time. A missing program is a failure, because it was to be tested.
"""

import json
import pathlib

from stages import Deadline, Failed, Skipped, run

SHARDS = pathlib.Path(__file__).with_name("shards.sh")
MESSAGE = 1500  # characters of each failed test in the record; the program's log has all


def outcome(reports):
    """From a program's JSON reports: how many tests ran, and the messages of those that failed."""
    suites = [test for report in reports for suite in report["testsuites"] for test in suite["testsuite"]]
    ran = [test for test in suites if test.get("result") != "SUPPRESSED" and test.get("status") == "RUN"]
    failed = {f"{t['classname']}.{t['name']}": "\n".join(f["failure"] for f in t["failures"])[:MESSAGE] for t in ran if t.get("failures")}
    skipped = sum(t.get("result") == "SKIPPED" for t in ran)
    return {"ran": len(ran) - skipped, "skipped": skipped, "failed": failed}


def run_programs(s, deadline, wanted, parts={}):
    """`wanted`: name of a program -> its arguments; `parts`: name -> number of parts (default 1). Returns the outcome of each; raises Failed
    if any failed, was missing or hung."""
    found, bad = {}, []
    for position, (name, words) in enumerate(wanted.items()):
        share = Deadline(deadline.left() / (len(wanted) - position))
        report = s.scratch / f"{name}.json"
        reports = [report.with_name(f"{report.name}.{part}") for part in range(parts.get(name, 1))]
        for each in reports:
            each.unlink(missing_ok=True)
        try:
            run([SHARDS, len(reports), report, s.test(name), *words], share, s.environment, s.logs, name)
            found[name] = {}
        except Skipped as why:
            if s.elsewhere:
                raise
            found[name] = {"missing": str(why)}
        except Failed as why:
            found[name] = {"error": str(why)[-2000:]}
        # A part that crashed or was ended has written no report.
        if written := [json.loads(each.read_text()) for each in reports if each.exists() and each.stat().st_size]:
            found[name] |= outcome(written)
        if "missing" in found[name] or "error" in found[name] or found[name].get("failed"):
            bad.append(name)
        deadline.keep(found)
    if bad:
        raise Failed(f"not as it should be: {', '.join(bad)}\n" + "\n".join(f"{name}: {json.dumps(found[name])[:900]}" for name in bad))
    return found
