# Sourced by examples/*.sh and tests/run.sh: the Debian packages that terrace needs to build, and helpers that report each part and its
# time, install packages, and write a text to train on.

terrace_packages=(
  g++ cmake ninja-build pkg-config git ca-certificates
  liburing-dev libnuma-dev libtbb-dev libopenmpi-dev openmpi-bin libdnnl-dev libxxhash-dev
  libpcre2-dev libsentencepiece-dev zlib1g-dev libzstd-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libfmt-dev nlohmann-json3-dev libtomlplusplus-dev
)

say() { printf '\n== %s\n' "$*"; }

# timed NAME COMMAND…: runs the command and prints how long it took, also to the file TERRACE_TIMES if that is set. Exit code 77 is a skip.
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

# too_late WHAT HOW: says that WHAT is left out if the time TERRACE_LAST_BEGIN (seconds since 1970) has passed, and how to run it later.
too_late() {
  [ -n "${TERRACE_LAST_BEGIN:-}" ] && [ "$(date +%s)" -gt "$TERRACE_LAST_BEGIN" ] || return
  say "$1: skipped, because the parts before it took too long on this machine ($2 runs it)"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# install_packages PACKAGE…: installs the missing packages in one apt call, and nothing if none is missing.
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

# write_once FILE COMMAND…: writes what the command prints to the file, which only appears when it is complete. A second call keeps it.
write_once() {
  local file=$1
  shift
  mkdir -p "$(dirname "$file")" || return
  [ -s "$file" ] || { "$@" > "$file.new" && mv "$file.new" "$file"; } || return
  printf '%s: %s bytes of text\n' "$file" "$(stat -c %s "$file")"
}

# Prints the King James Bible (package bible-kjv), one verse a line, without the numbers of the verses.
print_bible() { bible -f gen1:1-rev22:21 </dev/null 2>/dev/null | sed 's/^[^ ]* //'; }
