#!/usr/bin/env bash
# Checks the sources: includes point only downward, formatting, excerpts and names in the pages, no stray files.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0

# The library names settings (core/base/refused_setting.h); only the program has flags.
if grep -rnE '"[^"]*--[a-z]' core memory offload optimizers parallel --include='*.h' --include='*.cpp' --include='*.inl' --include='*.cu' |
  grep -vE '^[^:]*:[0-9]*: *//'; then
  echo 'error: a text of the library names a flag of the command line (write the setting in backquotes)' >&2
  status=1
fi

# Only the program has exit codes, reads the environment and writes to standard error; the library warns through a Log. Named are
# the exceptions: modules are found like shared libraries, and MPI tells a process through variables which one it is.
library=(core memory offload optimizers parallel examples/lm)
if grep -rnE '\bExit::|\bgetenv\(|\b(say|fprintf|fputs|print)\(stderr\b|(^|[^a-zA-Z_.:>])warn\(' "${library[@]}" --include='*.h' --include='*.cpp' \
  --include='*.inl' --include='*.cu' | grep -vE '^[^:]*:[0-9]*: *//|^core/base/(log|notice)\.|^core/base/module\.cpp:[0-9]*:.*"TERRACE_MODULE_PATH"' |
  grep -vE '^parallel/comm/mpi/stopped_ranks\.cpp:[0-9]*:.*getenv\(k(Job|Rank)\)|^parallel/comm/mpi/watchdog\.cpp:'; then
  echo 'error: the library does what only the program does (options: core/base/log.h, offload/io/io_choice.h)' >&2
  status=1
fi

# Files that a test or a run left in the checkout must not be committed.
top='CMakeLists.txt|CMakePresets.json|README.md|core|memory|offload|optimizers|parallel|examples|tests|bench|docs|cmake|\.[^/]*'
if git ls-files | cut -d/ -f1 | sort -u | grep -vxE "$top"; then
  echo 'error: the above does not belong at the top level' >&2
  status=1
fi

if command -v python3 >/dev/null; then
  python3 -B tests/room_checks.py --self-test || status=1
  python3 -B tests/room_checks.py || { echo 'error: the includes above point upward' >&2; status=1; }
  python3 -B tests/tour_excerpts.py || status=1
  python3 -B tests/page_checks.py --self-test || status=1
  python3 -B tests/page_checks.py || { echo 'error: the pages above name what does not exist' >&2; status=1; }
else
  echo 'skipped: there is no python3, so neither includes nor pages are checked'
fi

if command -v clang-format >/dev/null; then
  if ! git ls-files '*.h' '*.cpp' '*.cu' | xargs -r clang-format --dry-run -Werror 2>format.log; then
    grep -E 'error:' format.log | cut -d: -f1 | sort | uniq -c | head -20
    echo 'error: run clang-format -i on the files above' >&2
    status=1
  fi
  rm -f format.log
else
  echo 'skipped: clang-format is not installed'
fi
exit $status
