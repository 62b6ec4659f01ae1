#!/usr/bin/env bash
# Checks beyond the tests of the build: formatting, a bare system, other instruction sets, clang-tidy, sanitizers.
#   tests/checks.sh [--no-install] [--changed] [PART...]       without a PART: all of them, in this order
#
#   source        formatting, includes that point upward, excerpts and names in the pages (seconds)
#   bare          packages, build and a first run in a bare Debian (needs root and debootstrap)
#   rehearsal     the acceptance on a GPU in a bare Debian, on the fake driver (needs root, debootstrap and build/release)
#   instructions  the program and the math tests as on older processors (needs build/release)
#   tidy          clang-tidy over the library
#   sanitizers    the short form of tests/sanitizers.sh
#
# --changed skips bare, rehearsal and instructions if nothing that they read has changed since they last passed on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 changed=0 parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --changed) changed=1 ;;
    -h | --help) sed -n '2,12p' "$0"; exit 0 ;;
    source | bare | rehearsal | instructions | tidy | sanitizers) parts+=("$1") ;;
    *) echo "tests/checks.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(source bare rehearsal instructions tidy sanitizers)

product=(CMakeLists.txt CMakePresets.json cmake core memory offload optimizers parallel tests/doubles bench examples)
declare -A inputs=(
  [bare]="tests/bare_root.sh tests/bare_system.sh"
  [rehearsal]="tests/bare_root.sh tests/rehearsal.sh tests/CMakeLists.txt tests/support tests/core tests/cuda tests/math tests/examples tests/bench"
  [instructions]="tests/instruction_sets.sh tests/CMakeLists.txt tests/support tests/math"
)
# inputs_of PART: a hash of the sources, the compilers and the processor.
inputs_of() {
  local paths
  read -ra paths <<<"${inputs[$1]}"
  {
    git ls-files -z --cached --others --exclude-standard -- "${product[@]}" "${paths[@]}" | sort -z | xargs -0 sha256sum 2>/dev/null
    g++ --version
    ! command -v nvcc >/dev/null || nvcc --version
    grep -m1 '^flags' /proc/cpuinfo
    dpkg-query -W libdnnl2 libdnnl3 qemu-user 2>/dev/null || true  # each Debian has one of the two
  } | sha256sum | cut -d' ' -f1
}

# if_changed PART NAME COMMAND…: the hash of the last pass is kept outside the checkout, so a new machine runs everything.
if_changed() {
  local passed=${XDG_CACHE_HOME:-$HOME/.cache}/terrace/passed/$1 now status=0
  now=$(inputs_of "$1")
  if [ "$changed" = 1 ] && [ "$now" = "$(cat "$passed" 2>/dev/null)" ]; then
    say "$2: skipped, because nothing that it reads has changed since it passed here (--all or no --changed runs it)"
    return
  fi
  rm -f "$passed"
  timed "${@:2}" || status=$?
  [ "$status" != 77 ] || return 0  # the command has printed why it cannot run here
  [ "$status" = 0 ] || return "$status"
  mkdir -p "$(dirname "$passed")"
  echo "$now" >"$passed"
}

[ "$install" = 0 ] || timed 'packages of the checks' install_packages "${terrace_packages[@]}" ccache clang clang-format clang-tidy debootstrap qemu-user
for part in "${parts[@]}"; do
  ! too_late "$part" "tests/checks.sh $part" || continue
  case $part in
    source) timed 'source checks' tests/source_checks.sh ;;
    bare) if_changed bare 'a bare system' tests/bare_system.sh ;;
    rehearsal) if_changed rehearsal 'the acceptance on a GPU, rehearsed' tests/rehearsal.sh ;;
    instructions) if_changed instructions 'instruction sets' tests/instruction_sets.sh ;;
    tidy) timed 'clang-tidy' tests/tidy.sh ;;
    sanitizers) timed 'sanitizers, short form' tests/sanitizers.sh --short ;;
  esac
done
