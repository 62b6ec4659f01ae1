"""Tests of a GoogleTest program, in parts at the same time."""

import json
import pathlib

from record import Cut, Failed

SHARDS = pathlib.Path(__file__).with_name("shards.sh")
MESSAGE = 1500  # characters of each failed test in the record; the program's log has all


def outcome(reports):
    """From a program's JSON reports: how many tests were named and ran, and the messages of those that failed."""
    named = [test for report in reports for suite in report["testsuites"] for test in suite["testsuite"]]
    ran = [test for test in named if test.get("status") == "RUN" and test.get("result") == "COMPLETED"]
    failed = {f"{t['classname']}.{t['name']}": "\n".join(f["failure"] for f in t["failures"])[:MESSAGE] for t in ran if t.get("failures")}
    skipped = sum(test.get("result") == "SKIPPED" for test in named)
    return {"ran": len(ran), "skipped": skipped, "failed": failed, "named": len({(t.get("classname"), t["name"]) for t in named})}


def tests(s, name, chosen="*", parts=1):
    """A part of a row. On the CPU device it only lists the tests. It fails if no test ran: then a test was renamed."""

    def work(part):
        reports = [s.runs / f"{name}.json.{i}" for i in range(parts)]
        for report in reports:
            report.unlink(missing_ok=True)
        listed = ["--gtest_list_tests"] if s.device == "cpu" else []
        told = {}
        try:
            part.run([SHARDS, parts, s.runs / f"{name}.json", s.test(name), f"--gtest_filter={chosen}", *listed], s.environment)
        except Cut as why:
            told["cut"] = str(why)
        except Failed as why:
            told["error"] = str(why)
        # A part that crashed or was ended has written no report.
        told |= outcome([json.loads(report.read_text()) for report in reports if report.exists() and report.stat().st_size])
        if told["failed"]:
            told["error"] = f"{len(told['failed'])} failed: {', '.join(told['failed'])}"
        elif not told["named" if listed else "ran"] and "cut" not in told:
            told.setdefault("error", f"no test of {name} ran")
        return told

    return work
