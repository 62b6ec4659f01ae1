#!/bin/sh
# Rehearses bench/gpu.sh on the CPU device: gpu_rehearsal.sh BUILD FOLDER. Without `bits`, which tests/rehearsal.sh runs.
set -eu
command -v python3 >/dev/null || { echo 'skipped: there is no python3'; exit 77; }
root=$(cd "$(dirname "$0")/../.." && pwd)
rm -rf "$2"
mkdir -p "$2"
"$root/bench/gpu.sh" --small --device cpu --folder "$1" --tests "$1/tests" --out "$2/results" --scratch "$2/scratch" --only 0-10,12-20 --budget 1800 \
  --patience "${TERRACE_PATIENCE:-5}" || true # the check tells more
python3 -B "$root/tests/bench/rehearsal_check.py" "$2/results"
