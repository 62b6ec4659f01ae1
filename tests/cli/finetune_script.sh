#!/usr/bin/env bash
# examples/finetune.sh with a small text and dictionary: after interruptions in both trainings, and kills at moments drawn from
# a seed, it ends with the same bits as an undisturbed run; a further start only reports.
#   TERRACE=PROGRAM [TERRACE_KILLS=N] [TERRACE_KILL_SEED=N] finetune_script.sh NEW-FOLDER
set -euo pipefail
folder=$1 project=$(cd "$(dirname "$0")/../.." && pwd)
rm -rf "$folder"
mkdir -p "$folder/dictionary"
fail() { echo "finetune_script.sh: $*" >&2; exit 1; }

# Words with a short meaning: 50 of 62, one of them twice.
for i in $(seq 60); do
  word=word$(printf %d "$i" | tr 0-9 a-j) meaning='what it means'
  [ $((i % 6)) != 0 ] || meaning='what "it" means'
  printf '%08d 18 n 02 %s 0 other 0 000 | %s; "an example"  \n' "$i" "$word" "$meaning"
done > "$folder/dictionary/data.noun"
echo '00000061 00 a 01 wordb(a) 0 000 | a meaning' > "$folder/dictionary/data.adj"
echo '00000062 02 r 01 two_words 0 000 | a meaning' > "$folder/dictionary/data.adv"
printf '  1 A licence | of whom  \n' > "$folder/dictionary/data.verb"
script() {
  exec "$project/examples/finetune.sh" --no-install --steps 4 --text "$project/docs/internals/tour.md" --dictionary "$folder/dictionary" --out-dir "$1"
}
start() {
  setsid "$BASH" -c "$(declare -f script); script '$folder/$1'" > "$folder/log" 2>&1 &
  pid=$!
}
# end SIGNAL: ends the script and its children, including a training that may still commit. Fails if the script had already
# finished.
end() {
  kill "-$1" -- "-$pid" 2>/dev/null || true
  local status=0
  wait "$pid" || status=$?
  while kill -0 -- "-$pid" 2>/dev/null; do sleep 0.05; done
  [ "$status" != 0 ]
}
# stop SIGNAL METRICS: starts the script and sends the signal after a training's second step.
stop() {
  start stopped
  until [ "$(wc -l 2>/dev/null < "$folder/stopped/$2" || echo 0)" -ge 2 ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
  end "$1" || fail "it ended before the signal"
}
# expect_same FOLDER: the results must equal those of the undisturbed run.
expect_same() {
  local file
  for file in tokenizer.json text.u16 words.jsonl {base-model,merged}/{config.json,model.safetensors} adapter/adapter_model.safetensors; do
    cmp "$folder/whole/$file" "$folder/$1/$file" || fail "$file differs after interruptions"
  done
}
export project folder
kills=${TERRACE_KILLS:-1} seed=${TERRACE_KILL_SEED:-1}

begin_ms=$(date +%s%3N)
(script "$folder/whole") > "$folder/first" || { cat "$folder/first"; fail 'it failed'; }
whole_ms=$(($(date +%s%3N) - begin_ms))
grep -q '^50 conversations' "$folder/first" || fail 'a word is missing, or one too many'
grep -q 'before the first step' "$folder/first" || fail 'no held-out loss before the first step'
(script "$folder/whole") > "$folder/second" || fail 'the second run failed'
[ "$(grep -c 'is finished; there is nothing to do' "$folder/second")" = 2 ] || fail 'the second run did more than report'
[ "$(sed -n '/^== questions/,/^== questions:/p' "$folder/first" | grep -v ' s$')" = \
  "$(sed -n '/^== questions/,/^== questions:/p' "$folder/second" | grep -v ' s$')" ] || fail 'other answers'

stop KILL base/metrics.jsonl
stop TERM lora/metrics.jsonl
(script "$folder/stopped") > "$folder/third" || { cat "$folder/third"; fail 'it did not go on'; }
expect_same stopped

echo "seed $seed, $kills kills"
RANDOM=$seed
for _ in $(seq "$kills"); do
  start killed
  wait_ms=$((RANDOM * whole_ms / 32768))
  sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
  end KILL || { expect_same killed; rm -r "$folder/killed"; }
done
(script "$folder/killed") > "$folder/fourth" || { cat "$folder/fourth"; fail "it did not go on after kills, seed $seed"; }
expect_same killed
rm -rf "$folder"
