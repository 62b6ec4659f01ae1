#!/usr/bin/env bash
# Installs what the build needs, builds, and runs the tests. Idempotent.
#   tests/run.sh [--no-install] [--quick] [--cuda] [--preset NAME] [-- CTEST-ARGUMENTS]
# --quick runs only the tests labelled quick; docs/internals/testing.md says how long each set takes.
# --cuda  compiles the CUDA code even without a GPU; it needs nvcc.
# Exits with 0 only if everything was built without a warning and every test passed or was visibly skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 preset=release configure=() selection=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --quick) selection=(-LE '\.slow$') ;;
    --cuda) configure=(-DTERRACE_CUDA=ON) ;;
    --preset)
      [ $# -gt 1 ] || { echo "tests/run.sh: --preset needs a name (see --help)" >&2; exit 2; }
      preset=$2; shift ;;
    --) shift; break ;;
    -h | --help) sed -n '2,6p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

# Open MPI refuses root without these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# btrfs-progs makes the file systems of tests in which a disk loses its power.
[ "$install" = 0 ] || timed 'packages' install_packages "${terrace_packages[@]}" ccache btrfs-progs
timed 'configure' cmake --preset "$preset" "${configure[@]}"
timed 'build' cmake --build --preset "$preset"
# One job more than cores, because tests also wait for deadlines, disks and processes.
timed "tests ($preset)" env -u TERRACE_TIMES ctest --test-dir "build/$preset" --output-on-failure -j "$(($(nproc) + 1))" --output-log "build/$preset/tests.log" \
  --output-junit tests.xml "${selection[@]}" "$@"
