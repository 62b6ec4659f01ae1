#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with clang's libFuzzer, addresses and undefined behaviour checked, and runs them on their corpus.
#   tests/fuzz.sh [--seconds N] [--build FOLDER] [--seed N]
# Exit code 0 when nothing was found, 77 (a skip) where clang or its libFuzzer is not installed. A finding is written to FOLDER;
# mend it, and put the file into tests/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=20 build=build/fuzz seed=$RANDOM
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --build) build=$2; shift ;;
    --seed) seed=$2; shift ;;
    -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
    *) echo "tests/fuzz.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

clang=
for name in clang++ clang++-16 clang++-19 clang++-15 clang++-14; do
  if command -v "$name" >/dev/null; then clang=$name; break; fi
done
[ -n "$clang" ] || { echo 'skipped: clang is not installed (apt-get install clang)'; exit 77; }

mkdir -p "$build/include"
ln -sfn "$PWD" "$build/include/terrace"
flags=(-std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I "$build/include")
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$build/probe.cpp"
"$clang" "${flags[@]}" "$build/probe.cpp" -o "$build/probe" 2>/dev/null ||
  { echo "skipped: $clang comes without libFuzzer (apt-get install clang)"; exit 77; }

# What parses is little, and has to be instrumented: it is compiled here rather than linked.
#   fuzz NAME LONGEST LIBRARIES SOURCE…
fuzz() {
  local name=$1 longest=$2 libraries=$3
  shift 3
  if [ ! -x "$build/$name" ] || [ -n "$(find "$@" tests/fuzz/*.h offload/*.h examples/lm/chat/jinja -newer "$build/$name")" ]; then
    echo "building $name with $clang"
    # shellcheck disable=SC2086
    "$clang" "${flags[@]}" "$@" -o "$build/$name" $libraries
  fi
  echo "$name: seed $seed, $seconds s"
  mkdir -p "$build/new/$name"
  "$build/$name" -seed="$seed" -max_total_time="$seconds" -max_len="$longest" -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$build/$name-" -verbosity=0 "$build/new/$name" "tests/fuzz/corpus/$name"
}
fuzz store 8192 '-lfmt -lxxhash' tests/fuzz/store_fuzzer.cpp offload/store_index.cpp tests/fuzz/plain_checksum.cpp offload/stripes.cpp
fuzz template 2048 -lfmt tests/fuzz/template_fuzzer.cpp examples/lm/chat/jinja/*.cpp examples/lm/tokenizer/unicode.cpp \
  core/printable.cpp core/text_file.cpp core/files.cpp core/error.cpp core/units.cpp
