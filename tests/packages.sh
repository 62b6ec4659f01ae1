#!/usr/bin/env bash
# Installs each package of cmake/pack.sh on a bare system, trains a first step, and measures the seconds that this takes. Removing the package
# must leave nothing. Then runs several ranks, and builds a project against libterrace-dev.
#   tests/packages.sh [--made] [SUITE…]      bookworm, trixie, jammy and noble by default; --made: with the packages of the last call
# Packages of a Debian suite are made on this system if it is that suite, otherwise in a bare one. Debian's packages are tried on their own
# suite; the archive and the wheel of the first suite are tried on every suite, Ubuntu's included. The results are in build/packages/results.
# Exits with 77 and the reason if no such system can be made: not root, no debootstrap, no mount namespace, no mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh
source tests/bare_root.sh

pack=1
case ${1:-} in
  -h | --help) sed -n '2,7p' "$0"; exit 0 ;;
  --made) pack=0; shift ;;
  -*) echo "tests/packages.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- bookworm trixie jammy noble
skip() { echo "skipped: terrace's packages cannot be tried here: $1"; exit 77; }
demand_bare_root
made=build/packages results=build/packages/results
mkdir -p "$made"
: >"$results"

# pack_on SUITE: makes the packages of SUITE in build/packages/SUITE.
pack_on() {
  rm -rf "${made:?}/$1"
  if grep -q "^VERSION_CODENAME=$1$" /etc/os-release; then
    local cuda=()
    ! command -v nvcc >/dev/null || cuda=(--cuda)
    cmake/pack.sh "${cuda[@]}" && cp -r build/package/packages "$made/$1"
    return
  fi
  (
    make_bare_root "$1" && mkdir -p "$root/srv/terrace" &&
      git ls-files -z | tar --null -T - -c | tar -x -C "$root/srv/terrace" &&
      echo 'set -euo pipefail; cd /srv/terrace; source cmake/packages.sh; install_packages ccache; cmake/pack.sh' >"$root/srv/steps.sh" &&
      run_steps_in_bare_root && cp -r "$root/srv/terrace/build/package/packages" "$made/$1"
  )
}

# try_package SUITE FROM WAY: tries the packages of FROM on a bare SUITE, with the steps of the function WAY below.
try_package() {
  (
    make_bare_root "$1" && cp "$made/$2"/* "$root/srv/" &&
      mkdir "$root/srv/sources" && cp -r examples tests/install/project "$root/srv/sources/" &&
      { echo "$common" && declare -f "$3" && echo "$3"; } >"$root/srv/steps.sh" &&
      run_steps_in_bare_root && sed "s/^/$1, packages of $2, $3: /" "$root/srv/results" >>"$results"
  )
}

common=$(cat <<'END'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
cd /srv
printf '%.0sIn the beginning God created the heaven and the earth.\n' {1..370} >corpus.txt
tiny=(train --data corpus.txt --layers 2 --hidden 32 --heads 2 --seq-len 16 --steps 1)
apt() { apt-get -qq -o Dpkg::Use-Pty=0 --no-install-recommends -y "$@" >/dev/null; }
# takes WHAT COMMAND…
takes() {
  local begin=${EPOCHREALTIME/./} what=$1
  "${@:2}"
  local milliseconds=$(((${EPOCHREALTIME/./} - begin) / 1000))
  printf '%s %d.%03d s\n' "$what" $((milliseconds / 1000)) $((milliseconds % 1000)) | tee -a results
}
# Lists installed files, without the records and caches of apt, dpkg and Python.
files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /srv -o -path /tmp -o -path /var/log -o -path /var/cache \
    -o -path /var/lib/apt -o -name __pycache__ -o -name '*-old' \) -prune -o -print | sort
}
# nothing_left BEFORE
nothing_left() {
  diff "$1" <(files) >left || { echo 'error: removing it left these files, or took those of others:'; cat left; exit 1; }
  echo 'removing it leaves nothing' | tee -a results
}
build_project() {
  cmake -S sources/project -B /tmp/project -G Ninja -DSOURCES=/srv/sources/examples >/dev/null
  cmake --build /tmp/project -- --quiet
}
END
)

archive() {
  files >before
  takes 'unpacking' tar -xzf terrace-*.tar.gz -C /opt
  local program=(/opt/terrace-*/bin/terrace)
  takes 'first step' "${program[0]}" "${tiny[@]}" --out-dir one
  "${program[0]}" version
  local status=0
  "${program[0]}" launch -n 2 -- "${tiny[@]}" --out-dir none 2>said || status=$?
  [ "$status" = 4 ]
  grep 'apt install openmpi-bin' said
  rm -r /opt/terrace-*
  nothing_left before
  tar -xzf terrace-*.tar.gz -C /opt
  apt update && apt install openmpi-bin
  takes "first step of two ranks, with this system's Open MPI" "${program[0]}" launch -n 2 -- "${tiny[@]}" --out-dir two
}

deb() {
  apt update
  files >before
  takes 'apt install' apt install ./terrace_*.deb
  takes 'first step' terrace "${tiny[@]}" --out-dir one
  ls /usr/share/man/man1/terrace.1 /usr/share/bash-completion/completions/terrace /usr/share/doc/terrace/copyright
  apt purge --autoremove terrace
  nothing_left before
  # A dependency of Debian's Open MPI leaves a group of ssh behind, so nothing_left is not used here.
  takes 'apt install, with MPI' apt install ./terrace_*.deb ./terrace-mpi_*.deb
  takes 'first step of two ranks' terrace launch -n 2 -- "${tiny[@]}" --out-dir two
  apt purge --autoremove terrace terrace-mpi
  if files | grep terrace; then exit 1; fi
}

library() {
  apt update
  apt install g++ cmake ninja-build
  files >before
  takes 'apt install libterrace-dev' apt install ./libterrace-dev_*.deb
  takes 'a project against it' build_project
  /tmp/project/hello_offload /srv/disk
  apt purge --autoremove libterrace-dev
  nothing_left before
}

wheel() {
  apt update
  apt install python3-venv
  python3 -m venv /opt/python
  files >before
  takes 'pip install' /opt/python/bin/pip install -q --no-index --disable-pip-version-check terrace-*.whl
  takes 'first step' /opt/python/bin/terrace "${tiny[@]}" --out-dir one
  /opt/python/bin/pip uninstall -q -y terrace
  nothing_left before
}

for suite in "$@"; do
  if [ "$suite" != jammy ] && [ "$suite" != noble ]; then
    [ "$pack" = 0 ] || timed "packages of $suite" pack_on "$suite"
    for way in deb library; do timed "$suite: $way" try_package "$suite" "$suite" $way; done
  fi
  for way in archive wheel; do timed "$suite: $way of $1" try_package "$suite" "$1" $way; done
done
say 'results'
cat "$results"
