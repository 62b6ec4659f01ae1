#!/usr/bin/env bash
# Prints the resources of every kernel, by architecture, as ptxas reports them: registers per thread, static shared memory, stack and
# spilled bytes. (Dynamic shared memory is set at launch.) Ends with 1 if a kernel spills, or if ptxas makes a warpgroup wait after
# each of its products because their registers are used too early.
#   core/cuda/resources.sh BUILD-FOLDER, or: cmake --build BUILD-FOLDER --target cuda_resources
set -euo pipefail
commands=$1/compile_commands.json
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Compiles each CUDA source again, as the build does, with the output of ptxas; no file of the build is changed.
grep -o '"command": ".* -x cu .*"' "$commands" | sed 's/^"command": "//; s/"$//; s/\\"/"/g; s/\\\\/\\/g' |
  sed -E 's/ -o [^ ]+/ -o \/dev\/null/; s/ -MF [^ ]+//; s/ -MT [^ ]+//; s/ -MD / /' | nl -ba -w1 -s' ' > "$logs/list"
[ -s "$logs/list" ] || { echo "$0: no CUDA sources in $commands" >&2; exit 2; }
compile() {
  eval "${2#* } -Xptxas=-v" > "$1/${2%% *}.log" 2>&1 || { cat "$1/${2%% *}.log" >&2; exit 1; }
}
export -f compile
tr '\n' '\0' < "$logs/list" | xargs -0 -P "$(nproc)" -I{} bash -c 'compile "$@"' _ "$logs" {}

if grep -h 'wgmma.*serialized' "$logs"/*.log; then exit 1; fi
cat "$logs"/*.log | c++filt | sed 's/terrace::cuda:://g; s/terrace:://g' | awk '
  /Compiling entry function/ {
    arch = $0; sub(/.* for ./, "", arch); sub(/[^a-z0-9_].*/, "", arch)
    kernel = $0; sub(/.*entry function ./, "", kernel); sub(/. for .sm_.*/, "", kernel)
    if (match(kernel, /run_kernel</)) {  # run_kernel<Kernel, Args>: print Kernel
      kernel = substr(kernel, RSTART + RLENGTH); depth = 0
      for (i = 1; i <= length(kernel); ++i) {
        c = substr(kernel, i, 1)
        if (c == "<") ++depth
        if (c == ">") --depth
        if (c == "," && depth == 0) break
      }
      kernel = substr(kernel, 1, i - 1)
    }
  }
  /bytes stack frame/ { stack = $1; stored = $5; loaded = $9 }
  /Used [0-9]+ registers/ {
    registers = shared = 0
    for (i = 1; i <= NF; ++i) {
      if ($i ~ /^registers/) registers = $(i - 1)
      if ($i == "smem," || $i == "smem") shared = $(i - 2)
    }
    printf "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", kernel, arch, registers, shared, stack, stored, loaded
  }' | sort -u > "$logs/table"

awk -F'\t' '
  BEGIN { format = "%-46s %-6s %9s %12s %6s %13s %12s\n"
    printf format, "kernel", "arch", "registers", "shared bytes", "stack", "spill stores", "spill loads" }
  { printf format, $1, $2, $3, $4, $5, $6, $7; ++kernels; if ($6 + $7 > 0) ++spilling; if ($3 > most) { most = $3; which = $1 } }
  END { printf "%d kernels; most registers: %d (%s); spilling: %d\n", kernels, most, which, spilling; exit spilling > 0 }
' "$logs/table"
