#!/usr/bin/env bash
# clang-tidy (.clang-tidy says which checks and why) over the sources.
#   tests/tidy.sh [--all]
# Without --all the library only: the command line's, the examples' and the tests' headers take longer to read than all the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

files=('core/*.cpp' 'memory/*.cpp' 'offload/*.cpp' 'optimizers/*.cpp' 'parallel/*.cpp')
while [ $# -gt 0 ]; do
  case $1 in
    --all) files=('*.cpp') ;;
    -h | --help) sed -n '2,4p' "$0"; exit 0 ;;
    *) echo "tests/tidy.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if ! command -v clang-tidy >/dev/null; then
  echo 'skipped: clang-tidy is not installed'
  exit 0
fi
# Configured only, never built: every source alone, without the headers that g++ precompiles and the flags that only g++ knows.
build=build/tidy
cmake --preset release -B "$build" -DTERRACE_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
sed -i 's/ -fsched-pressure//g' "$build/compile_commands.json"
# What this build does not compile (another pool, no CUDA) is in no command and is left out.
git ls-files "${files[@]}" | while read -r file; do
  if grep -qF "\"$PWD/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
done | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" 2> >(grep -v 'warnings\? generated' >&2)
