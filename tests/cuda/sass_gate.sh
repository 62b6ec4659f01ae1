#!/usr/bin/env bash
# Checks the machine code of kernels. Exits with 1 and names the faulty kernels, or with 77 if there is no disassembler.
#   local     no kernel reads or writes local memory
#   products  every warpgroup product that adds to sums follows the previous one without a wait; at least one such kernel exists
#   wide      every kernel stores 16 bytes at once, and if it loads, loads 16 bytes at once, too (for 10.0 and newer, nvcc 13.0 makes two
#             loads of 8 bytes of those in fp64, so there kernels of doubles may)
#   lines     line numbers for profilers
# sass_gate.sh CUOBJDUMP RULE ARCHITECTURE FILE… [-- COMMAND…]: COMMAND makes the files first.
set -euo pipefail
cuobjdump=$1 rule=$2 arch=$3
shift 3
files=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do files+=("$1"); shift; done
PATH=$(dirname "$cuobjdump"):$PATH
if ! [ -x "$cuobjdump" ] || ! command -v nvdisasm >/dev/null; then
  echo "skipped: there is no cuobjdump with its nvdisasm (CUDA's toolkit has them, and the Python packages nvidia-cuda-cuobjdump"
  echo "and nvidia-cuda-nvdisasm, in one folder; -DTERRACE_CUOBJDUMP=PATH)"
  exit 77
fi
[ $# -gt 0 ] && "${@:2}"

status=0
for file in "${files[@]}"; do
  if [ "$rule" = lines ]; then
    # Not grep -q: it would exit before reading all of its input.
    [ "$("$cuobjdump" -elf -arch "$arch" "$file" | grep -c 'nv_debug_line_sass')" -gt 0 ] ||
      { echo "error: $(basename "$file"): no line numbers"; status=1; }
    continue
  fi
  "$cuobjdump" -sass -arch "$arch" "$file" | c++filt | awk -v rule="$rule" -v arch="$arch" -v file="$(basename "$file")" '
    function wrong(what) { printf "error: %s: %s: %s\n", file, kernel, what; failed = 1 }
    function end_of_kernel() {
      if (kernel == "" || rule != "wide") return
      if (!wide_stores) wrong("no store of 16 bytes")
      if (loads && !wide_loads && !(arch ~ /^sm_1../ && kernel ~ /<double/)) wrong("no load of 16 bytes")
    }
    /Function :/ {
      end_of_kernel()
      kernel = $0; sub(/.*Function : /, "", kernel); ++kernels
      loads = wide_loads = wide_stores = local = waits = 0; delete waited
    }
    !/^[ \t]*\/\*[0-9a-f]+\*\/ / { next }
    rule == "local" && /[ \t](LDL|STL)[. ]/ && !local++ { wrong("local memory") }
    /[ \t]LDG[. ]/ { ++loads }
    /[ \t]LDG\.[A-Z0-9.]*128/ { ++wide_loads }
    /[ \t]STG\.[A-Z0-9.]*128/ { ++wide_stores }
    # A barrier of the block separates the sums of one step from those of the next.
    /BAR\.SYNC/ { delete waited }
    /WARPGROUP\.DEPBAR/ { for (sums in waited) waited[sums] = 1 }
    /HGMMA/ {
      ++products
      sums = $0; sub(/.*HGMMA[^ ]* /, "", sums); sub(/,.*/, "", sums)
      if (rule == "products" && waited[sums] && !waits++) wrong("a wait between products that add to the same sums")
      waited[sums] = 0
    }
    END {
      end_of_kernel()
      if (!kernels) wrong("no kernels")
      if (rule == "products" && !products) wrong("no products of warpgroups")
      printf "%s: %d kernels, %d products\n", file, kernels, products
      exit failed
    }' || status=1
done
exit $status
