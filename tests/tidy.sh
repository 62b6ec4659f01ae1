#!/usr/bin/env bash
# clang-tidy (.clang-tidy says which checks and why) over the sources.
#   tests/tidy.sh [--all]
# Without --all the library only, ten files at a time as it is built, which takes a sixth of the time: most of it goes into reading
# headers. With --all every source alone, those of the command line, the examples and the tests, too.
set -euo pipefail
cd "$(dirname "$0")/.."

all=0
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=1 ;;
    -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
    *) echo "tests/tidy.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if ! command -v clang-tidy >/dev/null; then
  echo 'skipped: clang-tidy is not installed'
  exit 0
fi
# Configured only, never built: without the headers that g++ precompiles and the flags that only g++ knows. What this build does
# not compile (another pool, no CUDA) is left out.
build=build/tidy folders='core|memory|offload|optimizers|parallel'
configure=() filter=() here="($build/)?($folders)/"
[ "$all" = 0 ] || configure=(-DTERRACE_UNITY=OFF) here=''
# The files of a unit are included by it, so they count as headers.
[ "$all" = 1 ] || filter=("--header-filter=/($folders)/")
rm -rf "$build"
cmake --preset release -B "$build" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON "${configure[@]}" >/dev/null
sed -i 's/ -fsched-pressure//g' "$build/compile_commands.json"
sed -n 's/^  "file": "\(.*\)",\?$/\1/p' "$build/compile_commands.json" | grep -E "^$PWD/$here.*\.(cpp|cxx)$" | sort -u |
  xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" "${filter[@]}" 2> >(grep -v 'warnings\? generated' >&2)
