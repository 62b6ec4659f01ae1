#!/usr/bin/env bash
# From a fresh Debian 12 to a trained language model whose state is larger than device and host budgets together.
#   examples/quickstart.sh [--no-install] [--out-dir DIR] [--steps N]
# Installs packages, builds, measures this machine, plans, trains, proves that offloading changed nothing, and writes a sample.
# Idempotent: what is installed and built stays, an interrupted training continues, a finished one only reports.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 out=runs/quickstart steps=140
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --out-dir | --steps)
      [ $# -gt 1 ] || { echo "quickstart.sh: $1 needs a value (see --help)" >&2; exit 2; }
      if [ "$1" = --steps ]; then steps=$2; else out=$2; fi
      shift ;;
    -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

terrace=build/release/bin/terrace corpus=$out-data/bible.txt disk=$out-disk
run=(
  --data "$corpus" --out-dir "$out"
  # 10.7 million parameters: 167 MiB of weights, gradients and optimizer states ...
  --model llama --layers 6 --hidden 384 --heads 6 --seq-len 256
  # ... under budgets of 96 MiB together, so the rest, and activations too, live on the disk.
  --device-memory 32MiB --host-memory 64MiB --nvme-path "$disk"
  # 2,048 tokens a step, layer by layer over four micro-batches: weights come to the device twice a step, not eight times.
  --batch-size 2 --grad-accumulation 4 --order vertical
  --steps "$steps" --lr 1e-3 --warmup "$((steps < 20 ? steps : 20))" --eval-interval 60
)

begin=$SECONDS
[ "$install" = 0 ] || timed 'packages' install_packages "${terrace_packages[@]}" bible-kjv
timed 'build' build_program
timed 'corpus' write_once "$corpus" print_bible
mkdir -p "$disk"
timed 'this machine' "$terrace" doctor --measure --nvme-path "$disk"
timed 'the plan' "$terrace" plan "${run[@]}"
timed 'training' "$terrace" train "${run[@]}" --resume auto --verify-resident
timed 'a sample' "$terrace" generate "$out" --prompt 'And it came to pass' --max-tokens 300
say "all done in $((SECONDS - begin)) s"
cat <<END
  $out/report.html    loss, tiers, stalls, planned beside measured
  $out/trace.json     the last steps, for Perfetto
  $out/metrics.jsonl  one object a step
To train anew: rm -r '$out' '$disk'
END
