#!/usr/bin/env bash
# Rehearses the acceptance on one GPU (docs/internals/gpu.md): packs the installed folder and unpacks it in a bare Debian that has
# Python 3 but nothing else that terrace is built with, on the tests' fake driver and CUDA module. bench/gpu.sh runs its table and
# then its further rows; three rows run again with a test program that fails, one that hangs and one that is missing.
#   tests/rehearsal.sh [BUILD-FOLDER]      build/release by default; what the folder needs is built there
# Exits with 77 and the reason if no such system can be made: not root, no debootstrap, no mount namespace, no mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh
source tests/bare_root.sh

build=${1:-build/release}
case $build in
  -h | --help) sed -n '2,6p' "$0"; exit 0 ;;
  -*) echo "tests/rehearsal.sh: unknown argument '$build' (see --help)" >&2; exit 2 ;;
esac
skip() { echo "skipped: the acceptance cannot be rehearsed here: $1"; exit 77; }
demand_bare_root
command -v python3 >/dev/null || skip 'there is no python3'
[ -e "$build/CMakeCache.txt" ] || { echo "rehearsal.sh: $build has no build; run tests/run.sh first" >&2; exit 2; }

make_bare_root bookworm
programs=(core_devices_test gpu_math_test gpu_kernels_test gpu_layers_test)
timed 'build' cmake --build "$build" --target terrace_program terrace_fake_driver terrace_fake_cuda_module "${programs[@]}" -- --quiet
for component in folder folder-tests; do
  cmake --install "$build" --prefix "$scratch/folder" --component $component --strip >/dev/null
done

mkdir -p "$root/srv/fakes"
tar -czf "$root/srv/terrace.tar.gz" -C "$scratch" folder
tar -c bench/gpu bench/gpu.sh | tar -x -C "$root/srv"
cp cmake/packages.sh "$root/srv"
cp "$build"/tests/support/fake_cuda/{libcuda.so.1,terrace_cuda13.so} "$root/srv/fakes"
cat >"$root/srv/steps.sh" <<'END'
set -uo pipefail
cd /srv
source packages.sh
install_packages python3
! ldconfig -p | grep -E 'lib(uring|numa|tbb|mpi|gtest|gmock|dnnl|fmt|sentencepiece|cuda|nccl)\.so' || exit 1
export LD_LIBRARY_PATH=/srv/fakes TERRACE_MODULE_PATH=/srv/fakes
# acceptance OUT FLAGS…: a call of bench/gpu.sh, as docs/internals/gpu.md describes it for another machine.
acceptance() {
  local out=$1
  shift
  mkdir -p /tmp/disk && { [ -d /tmp/folder ] || tar -xzf terrace.tar.gz -C /tmp; } &&
    bench/gpu.sh --small --device cuda:0 --folder /tmp/folder --scratch /tmp/scratch --disk /tmp/disk --out "$out" "$@"
}
# The deadlines are made for a GPU; here processors compute, perhaps beside other work.
acceptance /srv/results --patience 4
acceptance /srv/results --patience 4 --only 11-19 --budget 1800
cd /tmp/folder/tests && rm gpu_layers_test
for fault in 'gpu_math_test:echo planted; exit 3' 'gpu_kernels_test:sleep 3600'; do
  printf '#!/bin/sh\n%s\n' "${fault#*:}" >"${fault%%:*}"
done
cd /srv
! acceptance /srv/planted --only 1,2,5
END
timed 'the calls' run_steps_in_bare_root
python3 -B tests/bench/rehearsal_check.py "$root/srv/results" "$root/srv/planted"
