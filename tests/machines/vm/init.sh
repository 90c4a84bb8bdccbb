#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# First program of the guest, in its initramfs: mounts the machine's root file system, read-only and with a tmpfs over
# it, as the guest's root, mounts the share under its own path, and executes guest.sh.
/bin/busybox --install -s /bin
fail() {
	echo "init: $*" >&2
	mount -t proc proc /proc 2>/dev/null
	echo o >/proc/sysrq-trigger
	sleep 1000
}
mkdir -p /proc /sys /dev /host /share /rw /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /*.ko; do
	insmod "$module" || echo "init: insmod $module failed" >&2
done
nine=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $nine,cache=loose,ro hostroot /host || fail "cannot mount the host's root"
mount -t 9p -o $nine share /share || fail "cannot mount the share"
mount -t tmpfs -o size=80% tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /root || fail "cannot mount the overlay"
. /share/.vm/config
for dir in proc sys dev; do
	mkdir -p /root/$dir
	mount --move /$dir /root/$dir
done
mkdir -p "/root$SHARE"
mount --move /share "/root$SHARE"
exec switch_root /root /bin/bash "$SHARE/.vm/guest.sh"
