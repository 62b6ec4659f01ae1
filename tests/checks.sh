#!/usr/bin/env bash
# What is no test of the build itself: formatting, a bare system, other instruction sets, clang-tidy, sanitizers.
#   tests/checks.sh [--no-install] [PART...]       without a PART: all of them, in this order
#
#   source        formatting, includes that point upward, excerpts in the docs (seconds)
#   bare          packages, build and a first run in a bare Debian (4 minutes; needs root and debootstrap)
#   rehearsal     the acceptance on a GPU in a bare Debian, on the fake driver (5 minutes; needs root, debootstrap and build/release)
#   instructions  the program and the math tests as on smaller processors (2 minutes; needs build/release)
#   tidy          clang-tidy over the library
#   sanitizers    the short form of tests/sanitizers.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    -h | --help) sed -n '2,10p' "$0"; exit 0 ;;
    source | bare | rehearsal | instructions | tidy | sanitizers) parts+=("$1") ;;
    *) echo "tests/checks.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(source bare rehearsal instructions tidy sanitizers)

[ "$install" = 0 ] || timed 'packages of the checks' install_packages "${terrace_packages[@]}" clang clang-format clang-tidy debootstrap qemu-user
for part in "${parts[@]}"; do
  case $part in
    source) timed 'source checks' tests/source_checks.sh ;;
    bare) timed 'a bare system' tests/bare_system.sh ;;
    rehearsal) timed 'the acceptance on a GPU, rehearsed' tests/rehearsal.sh ;;
    instructions) timed 'instruction sets' tests/instruction_sets.sh ;;
    tidy) timed 'clang-tidy' tests/tidy.sh ;;
    sanitizers) timed 'sanitizers, short form' tests/sanitizers.sh --short ;;
  esac
done
