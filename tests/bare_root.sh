# Sourced by tests/bare_system.sh and tests/rehearsal.sh, behind cmake/packages.sh: a bare Debian in a scratch folder.
# Needs skip(), which ends the script visibly where no such system can be made.

demand_bare_root() {
  [ "$(id -u)" = 0 ] || skip 'it needs root'
  command -v debootstrap >/dev/null || skip 'debootstrap is not installed'
  unshare --mount true 2>/dev/null || skip 'mount namespaces are not permitted'
}

# make_bare_root SUITE PACKAGES: in $scratch/root, which is removed when the script ends.
make_bare_root() {
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/terrace-bare-XXXXXX")
  trap 'rm -rf --one-file-system "$scratch"' EXIT
  root=$scratch/root
  timed "debootstrap $1" debootstrap --variant=minbase --include="$2" "$1" "$root" >"$scratch/log" 2>&1 ||
    { tail -3 "$scratch/log"; skip 'debootstrap failed (above)'; }
  tail -1 "$scratch/log"
}

# Runs /srv/steps.sh there. The mounts live in a namespace of their own and vanish with it.
run_steps_in_bare_root() {
  unshare --mount bash -c '
    set -e
    mount --make-rprivate /
    mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv TERM=dumb LANG=C.UTF-8 \
      chroot "$1" /bin/bash /srv/steps.sh' steps "$root" </dev/null
}
