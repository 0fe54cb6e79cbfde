#!/bin/bash
# Lays the simulated hardware over this node's /sys and /proc; runs inside the node as root.
set -euo pipefail
fake=/usr/local/fake
# a sysfs of this network namespace: the one at /sys may show another's interfaces (nspawn)
real=/run/testbed-sys
mkdir -p "$real"
mount -t sysfs -o ro sysfs "$real"
for part in bus class devices module; do
  mount -t overlay overlay -o "ro,lowerdir=$fake/sys/$part:$real/$part" "/sys/$part"
done
for name in meminfo buddyinfo swaps vmstat cmdline; do
  mount --bind "$fake/proc/$name" "/proc/$name"
done
# a kernel with a module that registers there has the folder
[ ! -d /proc/driver ] || mount --bind "$fake/proc/driver" /proc/driver
mkdir -p /run/fake-vm
for name in swappiness overcommit_memory drop_caches compact_memory max_map_count nr_hugepages \
  compaction_proactiveness vfs_cache_pressure; do
  if [ -r "/proc/sys/vm/$name" ]; then cat "/proc/sys/vm/$name"; else echo 0; fi \
    >"/run/fake-vm/$name"
done
. "$fake/facts.sh"
echo "$min_free_kbytes" >/run/fake-vm/min_free_kbytes
mount --bind /run/fake-vm /proc/sys/vm
