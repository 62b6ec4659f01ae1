#!/usr/bin/env bash
# The portable code on ARM: builds it with Debian's cross compiler and runs the libraries' quick tests under qemu, on this machine.
#   tests/arm.sh [FOLDER…]      the tests of these folders; without one: core, math, memory and offload
# Debian's libraries for ARM are unpacked in build/arm/sysroot, and nothing is installed. Speed under qemu says nothing about ARM.
# Exit code 77 and the reason where it cannot run: no cross compiler, no qemu, no mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

case ${1:-} in
  -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
  -*) echo "tests/arm.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- core math memory offload
skip() { echo "skipped: terrace cannot be tried on ARM here: $1"; exit 77; }
command -v aarch64-linux-gnu-g++ >/dev/null || skip 'there is no cross compiler (apt-get install g++-aarch64-linux-gnu)'
command -v qemu-aarch64-static >/dev/null || skip 'there is no qemu-aarch64-static (apt-get install qemu-user-static)'

# make_sysroot: the libraries of cmake/packages.sh and what they depend on, downloaded by an apt that knows only build/arm/apt.
make_sysroot() {
  local apt=$PWD/build/arm/apt libraries=(libstdc++-12-dev)
  for p in "${terrace_packages[@]}"; do
    case $p in libopenmpi-dev) ;; lib* | nlohmann* | zlib*) libraries+=("$p") ;; esac
  done
  mkdir -p "$apt"/{state/lists,cache/archives}/partial
  : >"$apt/status"
  cat >"$apt/conf" <<END
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Sandbox::User "";
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
END
  export APT_CONFIG=$apt/conf
  { apt-get update -qq && apt-get install -qq -y --no-install-recommends --download-only "${libraries[@]}"; } >"$apt/log" 2>&1 ||
    { tail -3 "$apt/log"; skip 'apt has no packages for arm64 (above)'; }
  rm -rf build/arm/sysroot.new && mkdir build/arm/sysroot.new || return
  for p in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$p" build/arm/sysroot.new || return; done
  # A link such as libm.so names a file of the system, which is another one here.
  find build/arm/sysroot.new -type l -lname '/*' -exec sh -c 'ln -sf "$1/build/arm/sysroot$(readlink "$2")" "$2"' sh "$PWD" {} \; || return
  mv build/arm/sysroot.new build/arm/sysroot
}

# Tests that say nothing here, each with the reason: qemu translates programs and system calls one by one.
left_out=(
  'PinnedMemory.RefusesANumaNodeThatIsNotThere: qemu does not pass mbind() on'
  'PinnedMemory.GoesOnUnlockedWithOneWarning: a test of a process that starts itself again, which needs the system to know qemu'
  'RoomForCode.IsAskedForBeforeTheFirstProduct: starts itself again, too'
  'MachineProfiles.SayWhetherADiskWasMeasured: measures the machine, which takes minutes under qemu'
  'MachineProfiles.MeasurementIsComplete: measures the machine, too'
  'MachineProfiles.MeasurementInNoTimeReadsOnlyWhatItWrote: measures the machine, too'
)

quick_tests() {
  local status=0 names
  printf 'left out: %s\n' "${left_out[@]}"
  names=$(printf '|%s' "${left_out[@]%%:*}")
  export TERRACE_FUZZ_OPS=20000  # a fiftieth: a processor under qemu is slow
  for folder in "$@"; do ctest --test-dir "build/arm/tests/$folder" -L '\.quick$' -E "^(${names:1})\$" --output-on-failure || status=1; done
  return $status
}

[ -d build/arm/sysroot ] || timed 'libraries for ARM' make_sysroot
timed 'configure' cmake --preset arm
targets=("${@/#/tests/}")
timed 'build' cmake --build --preset arm --target hello_leases hello_layers "${targets[@]/%//all}"
timed 'quick tests' quick_tests "$@"
