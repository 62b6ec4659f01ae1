#!/usr/bin/env bash
# Runs clang-tidy over the sources (.clang-tidy says which checks run, and why).
#   tests/tidy.sh [--all]
# Without --all it checks only the library, ten files at a time as in the build: reading headers takes most of the time, so this needs
# only a sixth of it. With --all it checks every source alone, including the command line, the examples and the tests.
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
# This build is only configured, without g++'s precompiled headers and the flags that only g++ has. Sources that it does not compile
# (another pool, no CUDA) are left out.
export build=build/tidy files="^$PWD/(build/tidy/)?(core|memory|offload|optimizers|parallel)/.*\.(cpp|cxx)$"
# A unit includes its files, so they count as headers.
export headers='/(core|memory|offload|optimizers|parallel)/'
configure=()
[ "$all" = 0 ] || { configure=(-DTERRACE_UNITY=OFF) headers='' files="^$PWD/.*\.(cpp|cxx)$"; }
rm -rf "$build"
cmake --preset release -B "$build" -DTERRACE_CCACHE=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON "${configure[@]}" >/dev/null
sed -i 's/ -fsched-pressure//g' "$build/compile_commands.json"

# tidy COMMAND FILE: skipped if the same preprocessed text has passed the same rules before, here or in another checkout.
tidy() {
  [[ $2 =~ $files ]] || return 0
  local seen
  seen=$(cd "$build" && { echo "$rules $1"; eval "${1% -o *} -E -C '$2'"; } | sed "s|${PWD%/"$build"}/||g" | sha256sum)
  [ ! -e "$passed/${seen%% *}" ] || return 0
  clang-tidy --quiet -p "$build" ${headers:+"--header-filter=$headers"} "$2" && touch "$passed/${seen%% *}"
}
export passed=${XDG_CACHE_HOME:-$HOME/.cache}/terrace/tidy rules
rules="$headers $(clang-tidy --version) $(cat .clang-tidy)"
mkdir -p "$passed"
export -f tidy
sed -n 's/^  "\(command\|file\)": "\(.*\)",\{0,1\}$/\2/p' "$build/compile_commands.json" | sed 's/\\\(.\)/\1/g' |
  xargs -d '\n' -P "$(nproc)" -n 2 bash -c 'tidy "$@"' tidy 2> >(grep -v 'warnings\? generated' >&2)
