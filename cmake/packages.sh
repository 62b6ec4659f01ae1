# Sourced by examples/*.sh and tests/run.sh: the Debian packages that terrace builds with, helpers to say what happens and how
# long it took, and a text to learn. One apt call on a fresh machine.

terrace_packages=(
  g++ cmake ninja-build pkg-config git ca-certificates
  liburing-dev libnuma-dev libtbb-dev libopenmpi-dev openmpi-bin libdnnl-dev libxxhash-dev
  libpcre2-dev libsentencepiece-dev zlib1g-dev libzstd-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libfmt-dev nlohmann-json3-dev libtomlplusplus-dev
)

say() { printf '\n== %s\n' "$*"; }

# timed NAME COMMAND…: runs it and says how long it took, in the file TERRACE_TIMES, too, if that names one. Exit code 77 is a skip.
timed() {
  local name=$1 begin=$SECONDS
  shift
  say "$name"
  "$@" || {
    local status=$?
    [ "$status" = 77 ] || printf '== %s failed after %d s (exit %d)\n' "$name" $((SECONDS - begin)) "$status" >&2
    return "$status"
  }
  printf '== %s: %d s\n' "$name" $((SECONDS - begin))
  [ -z "${TERRACE_TIMES:-}" ] || printf '%6d s  %s\n' $((SECONDS - begin)) "$name" >>"$TERRACE_TIMES"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# install_packages PACKAGE…: only what is missing, and nothing at all when all is there.
install_packages() {
  local missing=()
  for p in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || missing+=("$p")
  done
  if [ ${#missing[@]} = 0 ]; then echo "all ${#} packages are installed"; return 0; fi
  echo "installing: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

build_program() {
  cmake --preset release && cmake --build --preset release --target terrace_program
}

# write_once FILE COMMAND…: writes what the command prints, and the file only appears when it is whole. A second call keeps it.
write_once() {
  local file=$1
  shift
  mkdir -p "$(dirname "$file")" || return
  [ -s "$file" ] || { "$@" > "$file.new" && mv "$file.new" "$file"; } || return
  printf '%s: %s bytes of text\n' "$file" "$(stat -c %s "$file")"
}

# The King James Bible (package bible-kjv), one verse a line, without the verses' numbers.
print_bible() { bible -f gen1:1-rev22:21 </dev/null 2>/dev/null | sed 's/^[^ ]* //'; }
