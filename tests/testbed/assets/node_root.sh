#!/bin/bash
# Builds the root of one node in the calling process's own mount namespace; sourced.
# in: $dir = the node's folder on the machine, $binds = colon-separated folders seen read-only
root=$dir/root
mount --make-rprivate /
mount -t overlay overlay \
  -o "lowerdir=/,upperdir=$dir/disk/upper,workdir=$dir/disk/work" "$root"
mkdir -p "$root/usr/local/fake" "$root/mnt/nvme"
mount --bind "$dir/fake" "$root/usr/local/fake"
mount -o remount,bind,ro "$root/usr/local/fake"
mount --bind "$dir/nvme" "$root/mnt/nvme"
IFS=: read -ra folders <<<"$binds"
