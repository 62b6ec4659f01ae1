#!/usr/bin/env bash
# Makes the packages of terrace in build/package/packages: an archive that runs where it is unpacked, Debian packages for the system that
# this runs on, and a wheel from the archive.
#   cmake/pack.sh [--no-install] [--cuda]
#   --cuda  also makes the module for GPUs; it needs nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 configure=(-DTERRACE_CUDA=OFF)
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --cuda) configure=(-DTERRACE_CUDA=ON) ;;
    -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
    *) echo "cmake/pack.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

build=build/package
out=$build/packages
[ "$install" = 0 ] || timed 'packages' install_packages "${terrace_packages[@]}" binutils dpkg-dev file python3
timed 'configure' cmake --preset package "${configure[@]}"
timed 'build' cmake --build --preset package -- --quiet
rm -rf "$out"
timed 'archive and Debian packages' cpack --config "$build/CPackConfig.cmake" -B "$out"
rm -rf "$out/_CPack_Packages"

archive=$(echo "$out"/terrace-*.tar.gz)
unpacked=$(mktemp -d "${TMPDIR:-/tmp}/terrace-package-XXXXXX")
trap 'rm -rf "$unpacked"' EXIT
tar -xzf "$archive" -C "$unpacked" --strip-components 1
if grep 'NO NOTICE WAS FOUND' "$unpacked/share/doc/terrace/copyright"; then
  echo "error: $archive has a library without its notice (above), so it must not be given to others" >&2
  exit 1
fi
if grep -rlF "$PWD/build" "$unpacked"; then
  echo "error: $archive has a path of this machine in it (above), where another machine may have anything" >&2
  exit 1
fi
# newest NAME: prints the newest version of the symbols NAME_… that any file of the archive needs.
newest() { find "$unpacked"/{bin,lib} -type f -exec objdump -T {} + | grep -oE "\(?$1_[0-9.]+" | sed 's/.*_//' | sort -V | tail -1; }
glibc=$(newest GLIBC) libstdcxx=$(newest GLIBCXX)
# A wheel's tag names only glibc, not libstdc++. Systems with glibc 2.35 have GCC 12, whose libstdc++ has GLIBCXX_3.4.30. If the archive
# needs a newer libstdc++, only this system's glibc is known to be enough.
wheel_glibc=2.35
[ "$(printf '%s\n' 3.4.30 "$libstdcxx" | sort -V | tail -1)" = 3.4.30 ] || wheel_glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
timed 'wheel' python3 -B cmake/wheel.py "$archive" "$(printf '%s\n' "$glibc" "$wheel_glibc" | sort -V | tail -1)" "$out"

say "the archive needs glibc $glibc and libstdc++ with GLIBCXX_$libstdcxx"
(cd "$out" && ls -l --block-size=kB | awk 'NF > 5 { print $5, $NF }')
