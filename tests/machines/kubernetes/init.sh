#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the node of the cluster from this machine, in new namespaces (mount, pid, uts, ipc, net), and runs a program in it.
# Nothing outside is changed: directories that the cluster's programs write are those below DIRECTORY.
# usage: init.sh DIRECTORY PROGRAM [ARGUMENT ...]
set -eu
dir=$1
if [ -z "${ACCELSCOPE_CGROUPS-}" ]; then
	mount --make-rprivate /
	while read -r cgroup; do echo $$ >"$cgroup/cgroup.procs"; done <"$dir/cgroups"
	export ACCELSCOPE_CGROUPS=1
	exec unshare --cgroup "$0" "$@"
fi
shift

# The cgroup hierarchies from the node's cgroups on.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
cut -d: -f2 /proc/self/cgroup | while read -r name; do
	case $name in
	'') to=unified ;;
	name=*) to=${name#name=} ;;
	*) to=$name ;;
	esac
	mkdir "/sys/fs/cgroup/$to"
	case $name in
	'') mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified ;;
	name=*) mount -t cgroup -o "none,$name" cgroup "/sys/fs/cgroup/$to" ;;
	*) mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$to" ;;
	esac
done
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf

# /dev, /etc and /var are copies. Snapshots cannot be on an overlay.
for copy in dev etc var; do
	mkdir "$dir/$copy" "$dir/$copy.work"
	mount -t overlay -o "lowerdir=/$copy,upperdir=$dir/$copy,workdir=$dir/$copy.work" overlay "/$copy"
done
mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for own in kubelet containerd; do
	mkdir -p "$dir/$own" "/var/lib/$own"
	mount --bind "$dir/$own" "/var/lib/$own"
done
mkdir -p /var/log/pods /var/log/containers
mount -t tmpfs -o mode=755 tmpfs /run

# The kubelet wants these values, and would set them for the whole machine.
for value in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	file=$dir/$(echo "${value%=*}" | tr / .)
	echo "${value#*=}" >"$file"
	mount --bind "$file" "/proc/sys/${value%=*}"
done

hostname node-1
ip link set lo up
ip link add node0 type veth peer name node1
ip address add 10.99.0.1/24 dev node0
ip link set node0 up
ip link set node1 up
ip route add default dev node0
mount --make-rshared / # the kubelet needs it
"$@" & # not exec: the first process has to wait for orphans
wait $!
