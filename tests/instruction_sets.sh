#!/usr/bin/env bash
# Runs the math tests, products of each dtype and a small training run of each dtype as on other processors than this one:
# DNNL_MAX_CPU_ISA limits oneDNN, and qemu-x86_64 limits everything. Prints a checksum for each processor, and fails if two processors
# differ for which docs/internals/testing.md promises the same bits.
#   tests/instruction_sets.sh [BUILD-FOLDER]      build/release by default
# Without qemu-user, the emulated processors are skipped with a message.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
case $build in
  -h | --help) sed -n '2,6p' "$0"; exit 0 ;;
esac
terrace=$build/bin/terrace bits=$build/tests/math/product_bits math=$build/tests/math/math_test
[ -x "$terrace" ] && [ -x "$bits" ] && [ -x "$math" ] || { echo "instruction_sets.sh: $build has no tests; run tests/run.sh first" >&2; exit 2; }

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
printf '%.0sIn the beginning God created the heaven and the earth.\n' {1..370} >"$scratch/corpus.txt"
tiny=(--data "$scratch/corpus.txt" --layers 2 --hidden 96 --heads 2 --seq-len 40 --batch-size 3 --steps 3 --lr 1e-2
  --device-memory unlimited --host-memory unlimited)

declare -A found
# row NAME COMMAND-PREFIX…: computes and prints the checksums of one processor.
row() {
  local name=$1 dtype hash
  shift
  "$@" "$math" --gtest_brief=1 --gtest_filter='MatmulTest.EqualsTheOracle' >"$scratch/math.log" 2>&1 ||
    { cat "$scratch/math.log"; echo "error: the math tests fail as on $name" >&2; exit 1; }
  while read -r dtype hash; do found[$name.product.$dtype]=$hash; done < <("$@" "$bits" 2>"$scratch/warnings")
  for dtype in fp32 bf16 fp16; do
    "$@" "$terrace" train "${tiny[@]}" --dtype $dtype --out-dir "$scratch/$name-$dtype" >"$scratch/run.log" 2>&1 ||
      { cat "$scratch/run.log"; echo "error: a run with --dtype $dtype fails as on $name" >&2; exit 1; }
    found[$name.run.$dtype]=$(sed -n 's/.*weights xxh64 //p' "$scratch/run.log")
  done
  printf '%-22s products %.8s %.8s %.8s %.8s   runs %.8s %.8s %.8s\n' "$name" "${found[$name.product.fp32]}" "${found[$name.product.bf16]}" \
    "${found[$name.product.fp16]}" "${found[$name.product.fp64]}" "${found[$name.run.fp32]}" "${found[$name.run.bf16]}" "${found[$name.run.fp16]}"
}
# same DTYPE NAME NAME: fails unless both processors have the same bits.
same() {
  local kind
  for kind in product run; do
    [ "${found[$2.$kind.$1]:-}" = "${found[$3.$kind.$1]:-}" ] ||
      { echo "error: $1 ($kind) differs between $2 and $3, which docs/internals/testing.md says share their bits" >&2; exit 1; }
  done
}

printf '%-22s          %-8s %-8s %-8s %-8s        %-8s %-8s %-8s\n' 'as on' fp32 bf16 fp16 fp64 fp32 bf16 fp16
row here env
sets=(SSE41 AVX2)
! grep -qw avx512vl /proc/cpuinfo || sets+=(AVX512_CORE)
for isa in "${sets[@]}"; do
  row "$isa" env DNNL_MAX_CPU_ISA="$isa" ONEDNN_MAX_CPU_ISA="$isa"
  same fp64 here "$isa"
done
# A processor without AVX-512, or with its first form, must have the bits of that set; AMX and AVX512_BF16 have other bf16 products.
if ! grep -qw avx512vl /proc/cpuinfo; then
  for dtype in fp32 bf16 fp16; do same $dtype here AVX2; done
elif ! grep -qw amx_tile /proc/cpuinfo; then
  for dtype in fp32 fp16; do same $dtype here AVX512_CORE; done
fi
if command -v qemu-x86_64 >/dev/null; then
  row qemu-Nehalem qemu-x86_64 -cpu Nehalem
  row qemu-Haswell qemu-x86_64 -cpu Haswell
  for dtype in fp32 bf16 fp16 fp64; do
    same $dtype qemu-Nehalem SSE41
    same $dtype qemu-Haswell AVX2
  done
else
  echo 'skipped: qemu-x86_64 is not installed (apt-get install qemu-user)'
fi
