#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with clang's libFuzzer and the address and undefined-behaviour sanitizers, and runs them on their corpus.
#   tests/fuzz.sh [--seconds N] [--build FOLDER] [--seed N] [--jobs N] [FUZZER…]
# Exits with 0 if nothing was found, and with 77 (a skip) if clang or its libFuzzer is not installed. A finding is written to FOLDER:
# fix the bug, and put the file into tests/fuzz/corpus. Without a FUZZER, all run.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=20 build=build/fuzz seed=$RANDOM jobs='' only=''
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --build) build=$2; shift ;;
    --seed) seed=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
    [a-z]*) only+=" $1" ;;
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
build=$(realpath "$build")
ln -sfn "$PWD" "$build/include/terrace"
sanitize=-fsanitize=address,undefined
flags=(-std=c++20 -O1 -g "$sanitize" -fno-sanitize-recover=all -ffunction-sections -fdata-sections -I "$build/include")
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$build/probe.cpp"
"$clang" "${flags[@]}" -fsanitize=fuzzer "$build/probe.cpp" -o "$build/probe" 2>/dev/null ||
  { echo "skipped: $clang comes without libFuzzer (apt-get install clang)"; exit 77; }

launcher=
! command -v ccache >/dev/null || launcher="env CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 ccache "
# The parsers must be instrumented, and are small, so they are compiled here instead of linking the libraries. Fuzzers share their
# common objects; the linker drops functions that parsing does not use.
rules="rule compile
  command = $launcher$clang ${flags[*]} -fsanitize=fuzzer-no-link -MD -MF \$out.d -c \$in -o \$out
  depfile = \$out.d
  deps = gcc
rule link
  command = $clang ${flags[*]} -fsanitize=fuzzer -Wl,--gc-sections \$in -o \$out \$libraries"
declare -A compiled
# fuzzer NAME LIBRARIES SOURCE…
fuzzer() {
  local name=$1 libraries=$2 objects='' source object
  shift 2
  for source in "$@"; do
    object=objects/${source//\//+}.o
    objects+=" $object"
    [ -n "${compiled[$object]:-}" ] || rules+=$'\n'"build $object: compile $PWD/$source"
    compiled[$object]=1
  done
  rules+=$'\n'"build $name: link$objects"$'\n'"  libraries = $libraries"
}
core=(core/base/{error,fetched_file,file_lock,file_state,files,folders,log,nesting,notice,printable,text_file,units}.cpp)
# The libraries that unpack files are not ours, so they are left out.
unpack=(examples/lm/unpack/{data_stream,gzip_absent,zstd_absent}.cpp)
regex=regex_absent pcre=
if pkg-config --exists libpcre2-8; then regex=regex_pcre2 pcre=-lpcre2-8; fi
fuzzer store '-lfmt -lxxhash' tests/fuzz/{store_fuzzer,plain_checksum}.cpp offload/store/{store_index,stripes}.cpp
fuzzer template -lfmt tests/fuzz/template_fuzzer.cpp examples/lm/chat/jinja/*.cpp examples/lm/tokenizer/words/unicode.cpp "${core[@]}"
mapfile -t tokenizer < <(find examples/lm/tokenizer -name '*.cpp' ! -name 'regex_*' ! -name sentencepiece.cpp | sort)
fuzzer reader "-lfmt -lxxhash $pcre" tests/fuzz/{reader_fuzzer,reader_checks,json_mutator,plain_checksum,plain_io_engine}.cpp \
  examples/lm/models/{activation_name,adapter_config,config_reader,family,harmless_keys,model_config,model_dir,rope_scaling,write_model_config}.cpp \
  examples/lm/data/{corpus,corpus_file,token_scan}.cpp \
  examples/lm/weights/{conversions,safetensors,safetensors_header,unique_keys,weight_files}.cpp examples/lm/families/*.cpp \
  offload/io/{direct_io,io_thread,page_buffer,read_ahead,thread_engine,write_behind}.cpp \
  "${unpack[@]}" examples/lm/chat/{,jinja/}*.cpp "${tokenizer[@]}" "examples/lm/tokenizer/words/$regex.cpp" \
  parallel/layers/parts/{block_pattern,transformer}.cpp parallel/mesh/{degrees,features,mesh}.cpp core/machine/{cores,topology}.cpp core/math/{dtype,philox}.cpp \
  core/device/thread_pool_std.cpp core/base/trace.cpp "${core[@]}"
cmp -s "$build/build.ninja" <<<"$rules" || cat >"$build/build.ninja" <<<"$rules"
ninja -C "$build" ${jobs:+-j "$jobs"} --quiet

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
ran=''

# fuzz CORPUS LONGEST COMMAND…: an allocation of more than 64 MiB is a finding, and so is an input that takes ten seconds.
fuzz() {
  local corpus=$1 longest=$2
  shift 2
  [[ " ${only:-$corpus} " == *" $corpus "* ]] || return 0
  ran+=" $corpus"
  echo "$corpus: seed $seed, $seconds s"
  mkdir -p "$build/new/$corpus"
  "$@" -seed="$seed" -max_total_time="$seconds" -max_len="$longest" -timeout=10 -malloc_limit_mb=64 -print_final_stats=1 \
    -artifact_prefix="$build/$corpus-" -verbosity=0 "$build/new/$corpus" "tests/fuzz/corpus/$corpus"
}
fuzz store 8192 "$build/store"
fuzz template 2048 "$build/template"
for reader in safetensors index config tokenizer tokenizer_config tokens progress adapter conversations encoded; do
  fuzz "$reader" 4096 "$build/reader" --reader="$reader"
done
[ -n "$ran" ] || { echo "tests/fuzz.sh: there is no fuzzer$only" >&2; exit 2; }
