#!/usr/bin/env bash
# Installs what the build needs, builds, and runs every test. Idempotent.
#   tests/run.sh [--no-install] [--preset NAME] [--no-checks] [-- CTEST-ARGUMENTS]
# --no-checks leaves out what is not a test of the build itself: formatting, clang-tidy, the short sanitizer runs.
# Exit code 0 only when everything was built without a warning and every test passed or was skipped, visibly.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh

install=1 preset=release checks=1
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --preset) preset=$2; shift ;;
    --no-checks) checks=0 ;;
    --) shift; break ;;
    -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

# Open MPI refuses root and more ranks than cores unless told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

[ "$install" = 0 ] || timed 'packages' install_packages "${terrace_packages[@]}" clang clang-format clang-tidy
[ "$checks" = 0 ] || timed 'source checks' tests/source_checks.sh
timed 'configure' cmake --preset "$preset"
begin=$SECONDS
timed 'build' cmake --build --preset "$preset"
build_s=$((SECONDS - begin))
# On a machine that builds this slowly the checks below would take hours: better the tests alone than no verdict in time.
slow_build_s=1500
if [ "$checks" = 1 ] && [ "$build_s" -gt "$slow_build_s" ]; then
  say "skipped: clang-tidy and the short sanitizer runs, because the build took $build_s s (run tests/tidy.sh, tests/sanitizers.sh)"
elif [ "$checks" = 1 ]; then
  timed 'clang-tidy' tests/tidy.sh "build/$preset"
  timed 'sanitizers, short form' tests/sanitizers.sh --short
fi
say "tests ($preset)"
ctest --test-dir "build/$preset" --output-on-failure -j 2 "$@"
