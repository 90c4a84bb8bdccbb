#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Mounts the root of the machine and executes its first process. Runs in new namespaces (mount, pid, uts, ipc, net).
# usage: init.sh DIRECTORY SHARED [COPIED]
set -eu
if [ -z "${ACCELSCOPE_MACHINE_CGROUP-}" ]; then
	# systemd needs a cgroup tree of its own. Start removes the tree afterwards.
	mount --make-rprivate /
	mount -t cgroup2 cgroup2 "$1"
	mkdir "$1/$(basename "$1")"
	echo $$ >"$1/$(basename "$1")/cgroup.procs"
	umount "$1"
	export ACCELSCOPE_MACHINE_CGROUP=1
	exec unshare --cgroup "$0" "$@"
fi
dir=$1 shared=$2 copied=${3-}
mount -t tmpfs -o mode=755 tmpfs "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
root=$dir/root
# A sensor that runs, or ran, on this machine keeps its inventory here. A whiteout also hides what appears later.
mkdir -p "$dir/upper/var/lib"
mknod "$dir/upper/var/lib/accelscope" c 0 0
mount -t overlay -o lowerdir=/,upperdir="$dir/upper",workdir="$dir/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tracefs tracefs "$root/sys/kernel/tracing"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -p "$root/run/lock" "$root/run/systemd/system"
mkdir -p "$root$shared"
mount --bind "$shared" "$root$shared"
if [ -n "$copied" ]; then # it may be on another file system than the root
	mkdir -p "$dir/copy/upper" "$dir/copy/work" "$root$copied"
	mount -t overlay -o lowerdir="$copied",upperdir="$dir/copy/upper",workdir="$dir/copy/work" overlay "$root$copied"
fi

# Devices without access to hardware; a console, because systemd needs one.
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
	touch "$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s null "$root/dev/console"

# Only units that a test starts are started, and the bus: no udev, no sysctl, no modules, no mounts. They would change
# the real machine.
rm -rf "$root"/etc/systemd/system/*.wants "$root"/lib/systemd/system/sysinit.target.wants \
	"$root"/lib/systemd/system/sockets.target.wants/systemd-udevd-*
: >"$root/etc/fstab"
rm -f "$root/usr/sbin/policy-rc.d" # with which whoever made the machine keeps packages from starting services
ip link set lo up
hostname machine

cd "$root"
pivot_root . mnt
umount -l /mnt
mount --make-rshared / # as systemd does outside of containers: services see what is mounted later
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=accelscope-test \
	/lib/systemd/systemd --unit=basic.target --log-target=journal --show-status=0
