# Makes a bare Debian or Ubuntu in a scratch folder. tests/bare_system.sh, tests/packages.sh and tests/rehearsal.sh source this file after
# cmake/packages.sh.
# They define skip(), which ends the script with a message if no such system can be made.

demand_bare_root() {
  [ "$(id -u)" = 0 ] || skip 'it needs root'
  command -v debootstrap >/dev/null || skip 'debootstrap is not installed'
  unshare --mount true 2>/dev/null || skip 'mount namespaces are not permitted'
}

# make_bare_root SUITE: makes the system once in each build folder, and copies it to $scratch/root, which is removed at the script's end.
make_bare_root() {
  local made=build/bare/$1 ubuntu=() script=()
  case $1 in
    jammy | noble)  # Debian's debootstrap may not know the name, but it has the script and the mirror for all releases of Ubuntu
      ubuntu=(--components=main,universe)
      script=(/usr/share/debootstrap/scripts/gutsy)
      script=("$(sed -n '/\*)/{n;s/.*default_mirror *//p;q}' "${script[0]}")" "${script[0]}") ;;
  esac
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/terrace-bare-XXXXXX")
  trap 'rm -rf --one-file-system "$scratch"' EXIT
  root=$scratch/root
  if [ ! -d "$made" ]; then
    rm -rf --one-file-system "$made.new" && mkdir -p build/bare
    timed "debootstrap $1" debootstrap --variant=minbase --include=ca-certificates "${ubuntu[@]}" "$1" "$made.new" "${script[@]}" >"$scratch/log" 2>&1 ||
      { tail -3 "$scratch/log"; skip 'debootstrap failed (above)'; }
    tail -1 "$scratch/log"
    mv "$made.new" "$made"
  fi
  cp -a "$made" "$root"
  cp /etc/resolv.conf "$root/etc/"
}

# Runs /srv/steps.sh in that system, with this machine's ccache. The mounts are in a namespace of their own and vanish with it.
run_steps_in_bare_root() {
  local cache=''
  if command -v ccache >/dev/null; then
    cache=$(ccache --get-config cache_dir)
    mkdir -p "$cache" "$root/srv/ccache"
  fi
  unshare --mount bash -c '
    set -e
    mount --make-rprivate /
    mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"
    [ -z "$2" ] || mount --bind "$2" "$1/srv/ccache"
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv TERM=dumb LANG=C.UTF-8 \
      CCACHE_DIR=/srv/ccache chroot "$1" /bin/bash /srv/steps.sh' steps "$root" "$cache" </dev/null
}
