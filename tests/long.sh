#!/usr/bin/env bash
# The long forms of the tests, which `tests/run.sh` runs in a short one. Builds what they need, then runs them one after
# another; times are of two cores and an NVMe disk.
#   tests/long.sh [--preset NAME] [--seed N] [PART...]      without a PART: all of them
#
#   residency   40 million random operations on the residency state machine, check() after each, LRU and Belady (2 min)
#   bitwise     language models under settings that cover every combination of three (about 180 runs): the same bits, and what
#               is moved is what was planned (5 min)
#   resume      four models stopped after every step and resumed under other budgets, and one stopped after all of them (3 min)
#   budgets     a model with more than 4 GiB of state trains within 512 MiB of device and 512 MiB of host memory (2 min, and
#               12 GiB of free disk space under build/)
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

preset=release seed=$((RANDOM * 32768 + RANDOM)) parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=$2; shift ;;
    --seed) seed=$2; shift ;;
    -h | --help) sed -n '2,13p' "$0"; exit 0 ;;
    residency | bitwise | resume | budgets) parts+=("$1") ;;
    *) echo "tests/long.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(residency bitwise resume budgets)

[ -f "build/$preset/build.ninja" ] || timed 'configure' cmake --preset "$preset"
timed 'build' cmake --build --preset "$preset" --target memory_test train_bitwise_test train_resume_test train_budget_test

export TERRACE_LONG_TESTS=1
tests=$PWD/build/$preset/tests
for part in "${parts[@]}"; do
  case $part in
    residency)
      say "seed $seed"
      TERRACE_FUZZ_OPS=40000000 TERRACE_FUZZ_SEED=$seed timed residency "$tests/memory/memory_test" --gtest_filter='ResidencyFuzz.*' ;;
    bitwise) (cd "$tests/train" && timed bitwise ./train_bitwise_test) ;;
    resume) (cd "$tests/train" && timed resume ./train_resume_test) ;;
    budgets) (cd "$tests/train" && timed budgets ./train_budget_test) ;;
  esac
done
say 'every long test passed'
