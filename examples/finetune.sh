#!/usr/bin/env bash
# From a fresh Debian 12 to a language model that answers: its tokenizer, pretraining, LoRA with the base on disk, a conversation.
#   examples/finetune.sh [--no-install] [--out-dir DIR] [--steps N] [--text FILE] [--dictionary DIR]
# Pretrains 2N steps on a text (the King James Bible), exports the model as a directory of Hugging Face's library, fine-tunes it
# for N steps to explain words as a dictionary does (WordNet), and exports the adapter (PEFT) and the merged model.
# Idempotent: what exists stays, an interrupted training continues, a finished one only reports. TERRACE=PROGRAM: builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 out=runs/finetune steps=300 text='' dictionary=/usr/share/wordnet
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --out-dir | --steps | --text | --dictionary)
      [ $# -gt 1 ] || { echo "finetune.sh: $1 needs a value (see --help)" >&2; exit 2; }
      case $1 in --out-dir) out=$2 ;; --steps) steps=$2 ;; --text) text=$2 ;; --dictionary) dictionary=$2 ;; esac
      shift ;;
    -h | --help) sed -n '2,6p' "$0"; exit 0 ;;
    *) echo "finetune.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
# Exported models belong to a number of steps, so another number is refused.
mkdir -p "$out"
[ -s "$out/steps" ] || echo "$steps" > "$out/steps"
[ "$(cat "$out/steps")" = "$steps" ] ||
  { echo "finetune.sh: $out was begun with --steps $(cat "$out/steps"): give the same, or another --out-dir" >&2; exit 2; }

# Words with a short first meaning, as conversations. A line of WordNet: "offset kind type count word … | meaning; example".
print_conversations() {
  cat "$dictionary"/data.{adj,adv,noun,verb} | awk -F ' [|] ' '
    /^ / { next }  # the licence
    { split($1, field, " "); word = field[5]; meaning = $2; sub(/[(].*/, "", word); sub(/;.*/, "", meaning); sub(/ *$/, "", meaning) }
    word ~ /^[a-z]+$/ && meaning ~ /^[a-z ,\047-]+$/ && length(meaning) <= 60 && !seen[word]++ {
      printf "{\"messages\": [{\"role\": \"user\", \"content\": \"What does %s mean?\"}, ", word
      printf "{\"role\": \"assistant\", \"content\": \"%s\"}]}\n", meaning
    }'
}

tokenize() {
  [ -s "$out/tokenizer.json" ] || "$terrace" train-tokenizer "$out/text.txt" --vocab 2048 --out "$out/tokenizer.json" \
    --special '<|endoftext|>' --special '<|im_start|>' --special '<|im_end|>' || return
  [ -s "$out/text.u16" ] || "$terrace" tokenize "$out/text.txt" --tokenizer "$out/tokenizer.json" --out "$out/text.u16"
}

# export_once NEW-DIR LAST-FILE RUN…
export_once() {
  local to=$1 last=$2
  shift 2
  if [ -s "$to/$last" ] && [ ! -e "$to/unfinished-export" ]; then echo "$to is there"; else "$terrace" ckpt export "$@" "$to"; fi
}

ask() {
  local word
  for word in sadly baker bread; do
    echo "> What does $word mean?"
    echo "What does $word mean?" | "$terrace" chat "$out/lora" --temperature 0.7 --top-k 40 --max-tokens 40 || return
  done
}

terrace=${TERRACE:-build/release/bin/terrace}
pretraining=(
  --data "$out/text.u16" --data-format u16 --tokenizer "$out/tokenizer.json" --vocab 2048 --out-dir "$out/base"
  --model llama --layers 4 --hidden 256 --heads 4 --seq-len 128 --batch-size 8
  --steps "$((2 * steps))" --lr 2e-3 --warmup "$((steps < 20 ? steps : 20))" --ckpt-interval 50 --resume auto
)
tuning=(
  --model "$out/base-model" --data "$out/words.jsonl" --data-format jsonl --out-dir "$out/lora"
  --lora-rank 16 --lora-alpha 32 --lora-targets all
  # 14.3 MiB of frozen weights, adapters with their states, and activations exceed 12 MiB, so the base is on the disk.
  --device-memory 7MiB --host-memory 5MiB --nvme-path "$out/disk"
  --seq-len 128 --batch-size 2 --grad-accumulation 4 --steps "$steps" --lr 2e-3 --warmup "$((steps < 10 ? steps : 10))"
  --eval-first --eval-batches 16 --ckpt-interval 50
)

begin=$SECONDS
[ "$install" = 0 ] || timed 'packages' install_packages "${terrace_packages[@]}" bible-kjv wordnet-base
[ -n "${TERRACE:-}" ] || timed 'build' build_program
if [ -n "$text" ]; then timed 'text' write_once "$out/text.txt" cat "$text"; else timed 'text' write_once "$out/text.txt" print_bible; fi
timed 'words' write_once "$out/words.jsonl" print_conversations
timed 'tokenizer' tokenize
timed 'pretraining' "$terrace" train "${pretraining[@]}"
timed 'the model as a directory' export_once "$out/base-model" config.json "$out/base"
mkdir -p "$out/disk"
timed 'the plan' "$terrace" plan "${tuning[@]}"
timed 'fine-tuning' "$terrace" train "${tuning[@]}" --resume auto
timed 'the adapter' export_once "$out/adapter" adapter_config.json "$out/lora"
timed 'the merged model' export_once "$out/merged" config.json --merge "$out/lora"
timed 'questions' ask
say "all done in $((SECONDS - begin)) s"
cat <<END
  $out/base-model, $out/merged    for transformers; $out/adapter for PEFT
  $out/lora/report.html           loss, tiers, stalls, planned beside measured
Ask it: $terrace chat $out/lora
To train anew: rm -r '$out'
END
