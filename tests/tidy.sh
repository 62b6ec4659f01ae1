#!/usr/bin/env bash
# clang-tidy (.clang-tidy says which checks and why) over the sources, with a configured build's compile commands.
#   tests/tidy.sh [BUILD-FOLDER] [--all]
# Without --all the library only: the command line's, the examples' and the tests' headers take longer to read than all the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/release files=('core/*.cpp' 'memory/*.cpp' 'offload/*.cpp' 'optimizers/*.cpp' 'parallel/*.cpp')
while [ $# -gt 0 ]; do
  case $1 in
    --all) files=('*.cpp') ;;
    -h | --help) sed -n '2,4p' "$0"; exit 0 ;;
    *) build=$1 ;;
  esac
  shift
done
if ! command -v clang-tidy >/dev/null; then
  echo 'skipped: clang-tidy is not installed'
  exit 0
fi
# The commands without what only g++ knows.
commands=$(mktemp -d)
trap 'rm -r "$commands"' EXIT
sed 's/ -fsched-pressure//g' "$build/compile_commands.json" >"$commands/compile_commands.json"
# What this build does not compile (another pool, no CUDA) is in no command and is left out.
git ls-files "${files[@]}" | while read -r file; do
  if grep -qF "\"$PWD/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
done | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$commands" 2> >(grep -v 'warnings\? generated' >&2)
