#!/usr/bin/env bash
# Shows that the build needs only the packages of cmake/packages.sh: makes a bare Debian in a scratch folder, installs them
# there, configures, builds the program with its MPI module (which links every library), and trains for two steps on two ranks.
#   tests/bare_system.sh [SUITE]      bookworm by default; trixie is Debian 13
# Exits with 77 and the reason if no such system can be made: not root, no debootstrap, no mount namespace, no mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
source cmake/packages.sh
source tests/bare_root.sh

suite=${1:-bookworm}
case $suite in
  -h | --help) sed -n '2,5p' "$0"; exit 0 ;;
  -*) echo "tests/bare_system.sh: unknown argument '$suite' (see --help)" >&2; exit 2 ;;
esac
skip() { echo "skipped: no bare $suite can be made here: $1"; exit 77; }
demand_bare_root
make_bare_root "$suite"
mkdir -p "$root/srv/terrace"
git ls-files -z | tar --null -T - -c | tar -x -C "$root/srv/terrace"

cat >"$root/srv/steps.sh" <<'END'
set -euo pipefail
cd /srv/terrace
source cmake/packages.sh
timed 'packages' install_packages "${terrace_packages[@]}" ccache
timed 'configure' cmake --preset release
timed 'build' cmake --build --preset release --target terrace_program -- --quiet
printf '%.0sIn the beginning God created the heaven and the earth.\n' {1..370} >corpus.txt
tiny=(--data corpus.txt --layers 2 --hidden 32 --heads 2 --seq-len 16 --steps 2)
build/release/bin/terrace doctor
build/release/bin/terrace train "${tiny[@]}" --dtype bf16 --out-dir one --nvme-path .
build/release/bin/terrace launch -n 2 -- train "${tiny[@]}" --out-dir two
END
timed "$suite" run_steps_in_bare_root
