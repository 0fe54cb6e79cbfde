#!/bin/bash
# First process of a node (systemd flavour): the same root, booted by a real systemd under nspawn.
# argv: NODE_DIR NAME SHM_MIB DROPPED_CAPABILITIES BINDS NETNS CGROUP
set -euo pipefail
dir=$1 name=$2 shm_mib=$3 dropped=$4 binds=$5 netns=$6 cgroup=$7
source "${0%/*}/node_root.sh"

# a cgroup subtree of its own: else every node's systemd would manage the machine's root group
for tree in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
  [ -f "$tree/cgroup.procs" ] || continue
  mkdir -p "$tree/$cgroup"
  echo $$ >"$tree/$cgroup/cgroup.procs"
done
seen=()
for folder in "${folders[@]}"; do seen+=(--bind-ro="$folder"); done
exec systemd-nspawn --quiet --boot --directory="$root" --machine="$name" \
  --register=no --keep-unit --console=pipe --link-journal=no --resolv-conf=off --timezone=off \
  --network-namespace-path="/run/netns/$netns" --drop-capability="$dropped" \
  "${seen[@]}" --tmpfs="/dev/shm:mode=1777,size=${shm_mib}m" \
  --bind=/dev/null:/dev/infiniband/uverbs0 --bind=/dev/null:/dev/infiniband/uverbs1 \
  --bind=/dev/null:/dev/infiniband/uverbs2 --bind=/dev/null:/dev/infiniband/uverbs3
