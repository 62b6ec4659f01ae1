#!/usr/bin/env bash
# Runs the long forms of tests that `tests/run.sh` runs in a short form. Builds what they need, then runs them one after
# another. The times are for two cores and an NVMe disk.
#   tests/long.sh [--preset NAME] [--seed N] [PART...]      without a PART: all of them
#
#   residency   40 million random operations on the residency state machine, check() after each, LRU and Belady (2 min)
#   leases      10,000 random programs of leases on streams and threads, with loops whose order changes, and 2,000 on a fake GPU (10 min)
#   bitwise     language models under settings that cover every combination of three (about 180 runs) give the same bits and move
#               what was planned (5 min)
#   rows        runs under the settings of 10 other covering arrays give the bits of one rank (10 min)
#   resume      four models stopped after each step in turn and resumed under other budgets, and one stopped after every step (3 min)
#   powerloss   four states that a power loss may leave at each event of two runs, 200 of them trained to the end; the fault
#               matrix at 20 places for each fault
#   kills       200 runs of the program killed at random moments, each resumed to the same weights; 200 lives of a run (training, copy,
#               export, removal) killed, and 50 without power, at random moments; examples/finetune.sh killed 40 times
#   flips       a bit flipped at 500 places of every file of a finished and of a stopped run is found or harmless (20 min)
#   runs        1,000 command lines of `terrace train`, drawn at random, give the same weights, losses and text under other budgets, tiers,
#               ranks and stops, and move what was planned (15 min)
#   cases       all cases of the tests for which continuous integration runs only some (OneIn), with all rounds of communicators (20 min)
#   meshes      2,000 command lines on meshes drawn at random train what one rank trains, with equal bits under other budgets (10 min)
#   memory      2,000 of the 400,000 allocations of a small run fail, one in each run, in half of the runs with all later ones (5 min)
#   soak        1,000 steps: open files, pinned bytes, memory and file space at the end equal those after step 10
#   fuzz        ten minutes of each of eleven fuzzers (needs clang)
#   templates   2,000 hostile chat templates, each within ten seconds and 512 MiB (16 min)
#   draws       all tests that compare with an oracle on random numbers, with 30 draws (5 min)
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
    -h | --help) sed -n '2,27p' "$0"; exit 0 ;;
    residency | leases | bitwise | rows | resume | powerloss | kills | flips | runs | cases | meshes | memory | soak | fuzz | templates | draws | budgets) parts+=("$1") ;;
    *) echo "tests/long.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(residency leases bitwise rows resume powerloss kills flips runs cases meshes memory soak fuzz templates draws budgets)

[ -f "build/$preset/build.ninja" ] || timed 'configure' cmake --preset "$preset"
timed 'build' cmake --build --preset "$preset" --target memory_test chunk_manager_test one_rank_bits_test train_bitwise_test train_resume_test train_budget_test \
  parallel_crash_test parallel_fault_test terrace_program_test terrace_runs_test terrace_meshes_test terrace_failing_memory_test hostile_templates_test math_test lm_layers_test bench_test

export TERRACE_LONG_TESTS=1
tests=$PWD/build/$preset/tests
for part in "${parts[@]}"; do
  case $part in
    residency)
      say "seed $seed"
      TERRACE_FUZZ_OPS=40000000 TERRACE_FUZZ_SEED=$seed timed residency "$tests/memory/memory_test" --gtest_filter='ResidencyFuzz.*' ;;
    leases)
      say "seed $seed"
      (cd "$tests/offload" && TERRACE_LEASE_PROGRAMS=10000 TERRACE_TEST_SEED=$seed timed leases ./chunk_manager_test --gtest_filter='LeasePrograms.*') ;;
    bitwise) (cd "$tests/train" && timed bitwise ./train_bitwise_test) ;;
    rows)
      say "seeds from $seed"
      for draw in $(seq 0 9); do (cd "$tests/parallel" && TERRACE_SEED=$((seed + draw)) ./one_rank_bits_test --gtest_brief=1); done ;;
    resume) (cd "$tests/train" && timed resume ./train_resume_test) ;;
    powerloss)
      say "seed $seed"
      (cd "$tests/parallel" && TERRACE_CRASH_SEED=$seed TERRACE_CRASH_LOSSES=4 TERRACE_CRASH_STRIDE=1 TERRACE_CRASH_RESUMES=100 \
        timed 'power losses' ./parallel_crash_test)
      (cd "$tests/parallel" && TERRACE_FAULT_SEED=$seed TERRACE_FAULT_POINTS=20 timed 'fault matrix' ./parallel_fault_test) ;;
    kills)
      say "seed $seed"
      (cd "$tests/cli" && TERRACE_KILLS=200 TERRACE_CUTS=50 TERRACE_KILL_SEED=$seed timed kills ./terrace_program_test --gtest_filter='Kills.*:Life.*')
      TERRACE=$PWD/build/$preset/bin/terrace TERRACE_KILLS=40 TERRACE_KILL_SEED=$seed timed 'kills of finetune.sh' \
        tests/cli/finetune_script.sh "$PWD/build/$preset/finetune-kills" ;;
    flips)
      say "seed $seed"
      (cd "$tests/cli" && TERRACE_FLIPS=500 TERRACE_FLIP_SEED=$seed timed flips ./terrace_program_test --gtest_filter='Flips.*') ;;
    runs)
      say "seed $seed"
      (cd "$tests/cli" && TERRACE_RUNS_LINES=1000 TERRACE_RUNS_SEED=$seed timed runs ./terrace_runs_test) ;;
    cases)
      timed 'build of the cases' cmake --build --preset "$preset"
      programs=$(git grep -lE 'OneIn |long_form\(\)' -- 'tests/parallel/*_test.cpp' 'tests/cli/drawn/compositions_test.cpp' |
        sed -E 's|.*/||; s|\.cpp$||; s|^compositions|terrace_compositions|; s|^mlp_tiles_test|vocab_tiles_test|' | sort -u | paste -sd '|')
      timed cases ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" -L "^($programs)\."
      timed 'layers on the emulated GPU' "$tests/cuda/cuda_layers_test" --gtest_brief=1 --gtest_filter='*/LayersTest.*' ;;
    meshes)
      say "seed $seed"
      (cd "$tests/cli" && TERRACE_MESHES_LINES=2000 TERRACE_MESHES_SEED=$seed timed meshes ./terrace_meshes_test) ;;
    memory)
      say "seed $seed"
      (cd "$tests/cli" && TERRACE_ALLOCATIONS=2000 TERRACE_ALLOCATION_SEED=$seed timed memory ./terrace_failing_memory_test) ;;
    soak) (cd "$tests/cli" && TERRACE_SOAK_STEPS=1000 timed soak ./terrace_program_test --gtest_filter='Soak.*') ;;
    fuzz)
      status=0
      timed fuzz tests/fuzz.sh --seconds 600 --seed "$((seed % 4294967295 + 1))" || status=$?
      [ "$status" = 0 ] || [ "$status" = 77 ] || exit "$status" ;;
    templates)
      say "seed $seed"
      TERRACE_TEMPLATES=2000 TERRACE_TEMPLATE_SEED=$seed timed templates "$tests/fuzz/hostile_templates_test" ;;
    draws)
      say "seeds from $seed"
      for draw in $(seq 0 29); do
        export TERRACE_TEST_SEED=$((seed + draw))
        "$tests/math/math_test" --gtest_brief=1
        "$tests/examples/lm_layers_test" --gtest_brief=1
        "$tests/bench/bench_test" --gtest_filter='Replay.*:Statistics.*:PatternTest.*' --gtest_brief=1
      done ;;
    budgets) (cd "$tests/train" && timed budgets ./train_budget_test) ;;
  esac
done
say 'every long test passed'
