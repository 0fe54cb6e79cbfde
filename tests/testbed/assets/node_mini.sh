#!/bin/bash
# First process of a node (mini flavour), already in its own net, mount, pid, uts, ipc namespaces.
# argv: NODE_DIR NAME SHM_MIB DROPPED_CAPABILITIES BINDS
set -euo pipefail
dir=$1 name=$2 shm_mib=$3 dropped=$4 binds=$5
source "${0%/*}/node_root.sh"
hostname "$name"

mount -t proc proc "$root/proc"
# writable kernel settings are the machine's, not the node's, except those of the network
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind /proc/sys/net "$root/proc/sys/net"
[ ! -e "$root/proc/sysrq-trigger" ] || mount --bind /dev/null "$root/proc/sysrq-trigger"
mount -t sysfs -o ro sysfs "$root/sys"

mount -t tmpfs -o mode=755,size=256k dev "$root/dev"
mkdir -p "$root"/dev/{pts,shm,infiniband}
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/full" c 1 7
mknod -m 666 "$root/dev/random" c 1 8
mknod -m 666 "$root/dev/urandom" c 1 9
mknod -m 666 "$root/dev/tty" c 5 0
for n in 0 1 2 3; do mknod -m 666 "$root/dev/infiniband/uverbs$n" c 1 3; done
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o "mode=1777,size=${shm_mib}m" shm "$root/dev/shm"
mount -t tmpfs -o mode=755,size=32m run "$root/run"
mount -t tmpfs -o mode=1777,size=256m tmp "$root/tmp"
# after /tmp, so that a folder below it is seen
for folder in "${folders[@]}"; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
  mount -o remount,bind,ro "$root$folder"
done

cd "$root"
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
mkdir -p /run/sshd /run/lock
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
unset XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME
/usr/local/fake/mount_facts.sh
exec setpriv --bounding-set "$dropped" /usr/local/fake/nodeinit
