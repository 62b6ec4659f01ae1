#!/usr/bin/env bash
# Builds with sanitizers and runs the tests: one build finds address errors, leaks and undefined behaviour, the other data races.
#   tests/sanitizers.sh [asan-ubsan|tsan|all] [--short] [-- CTEST-ARGUMENTS]
# --short, for continuous integration: only code that shares data between threads or hands memory over. Exits with 0 only if nothing was found.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

presets=(asan-ubsan tsan) short=0
while [ $# -gt 0 ]; do
  case $1 in
    all) presets=(asan-ubsan tsan) ;;
    asan-ubsan | tsan) presets=("$1") ;;
    --short) short=1 ;;
    --) shift; break ;;
    -h | --help) sed -n '2,4p' "$0"; exit 0 ;;
    *) echo "tests/sanitizers.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

targets=(all) configure=(-DTERRACE_SANITIZE_UPDATES=ON)
declare -A short_targets=()
if [ "$short" = 1 ]; then
  # Both builds test code that shares data between threads; only asan-ubsan tests code that hands memory over. Only tsan tests the
  # engine, which has most threads: its library takes longer to compile than all others together.
  both=(core_events_test core_devices_test memory_test io_engine_contract_test chunk_store_test mover_test)
  short_targets=([asan-ubsan]="${both[*]} core_memory_test chunk_manager_test"
    [tsan]="${both[*]} parallel_engine_test communicator_contract_test")
  # The updates are arithmetic on spans, without threads and allocations; the long form checks them in the optimizers' own tests.
  configure=(-DTERRACE_SANITIZE_UPDATES=OFF)
  export TERRACE_FUZZ_OPS=30000 TERRACE_FAULT_POINTS=2
fi
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# tsan leaves out kernels on the host: they are fibers of one thread, so they cannot race, and ThreadSanitizer switches fibers very slowly
# (in the engine and under communicators, too).
declare -A left_out_labels=([asan-ubsan]='^$' [tsan]='^(emulated_lane_test|cuda_(attention|update|layer_update|kernels|math|layers)_test)\.')
# It leaves out processes under MPI: ThreadSanitizer does not see how Open MPI's own threads wait for each other.
# It leaves out many emulated devices: with more than three, fibers take minutes under ThreadSanitizer, and waits exceed their limits.
declare -A left_out_names=([asan-ubsan]='^$' [tsan]='communicator_contract_mpi|Ranks\.(Processes|AKilledProcess)|CudaEngine\.(UpdatesOfWholeLayers|RanksThatShareLayers|UpdatesByItsKernels)|PackedBlocks.*/nccl|/nccl[45]')
# The short form leaves out runs with many more threads than cores: they run the same code as four threads, but for minutes.
[ "$short" = 0 ] || left_out_names+=([asan-ubsan]='communicator_contract_mpi' [tsan]="${left_out_names[tsan]}|/threads(8|13)|(PackedBlocks|LargeReductions|BytesArrive).*/threads7")

for preset in "${presets[@]}"; do
  ! too_late "sanitizers ($preset)" "tests/sanitizers.sh $preset" || continue
  selection=()
  if [ "$short" = 1 ]; then
    read -ra targets <<<"${short_targets[$preset]}"
    selection=(-L "^($(IFS='|'; echo "${targets[*]}"))\.")
  fi
  timed "configure ($preset)" cmake --preset "$preset" "${configure[@]}"
  timed "build ($preset)" cmake --build --preset "$preset" --target "${targets[@]}"
  timed "tests ($preset)" ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)" -LE "${left_out_labels[$preset]}" -E "${left_out_names[$preset]}" "${selection[@]}" "$@"
done
