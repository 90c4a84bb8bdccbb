# SPDX-License-Identifier: Apache-2.0
# Second program of the guest: mounts the file systems of a booted system, creates the RDMA devices, runs the command
# and powers off. Run writes its variables to the file config. If the first process shall be systemd, this script
# executes systemd, which runs the script again for the command.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
. "$(dirname "$0")/config"
state=$SHARE/.vm

run() { # the command, and power off
	for port in /sys/class/virtio-ports/*; do
		[ "$(cat "$port/name")" = stdio ] && stdio=/dev/${port##*/}
	done
	: >"$state/started"
	# The port can be opened only once, so the command gets a pipe: programs may open /dev/stdout.
	exec 3<>"$stdio"
	mkfifo /run/guest.out
	cat </run/guest.out >&3 &
	cat=$!
	bash "$state/command" <&3 >/run/guest.out 2>&1 3>&- &
	wait $!
	echo $? >"$state/status.tmp"
	dmesg -x >"$state/dmesg"
	mv "$state/status.tmp" "$state/status"
	sync
	# Waits for cat, so that the last output of the command is passed on. cat does not end if the command left processes
	# behind.
	for ((i = 0; i < 30; i++)); do
		kill -0 $cat 2>/dev/null || break
		sleep 0.1
	done
	# Powering off takes the root file system away at once. A first process that then needed a file would end, and the kernel
	# would panic: it waits already, in a read that never returns.
	mkfifo /run/guest.off
	exec 4<>/run/guest.off
	(
		sleep 0.3 # for QEMU
		echo o >/proc/sysrq-trigger
	) &
	read -r -u 4
}
[ "${1-}" = run ] && run

ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
mkdir -p /dev/pts /dev/shm /run
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
ln -sf pts/ptmx /dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock
mount -t securityfs securityfs /sys/kernel/security
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mkdir -p /lib/modules
mount --bind "$MODULES" /lib/modules

unified() { # DIRECTORY: cgroup v2 there, with all controllers that it has
	mount -t cgroup2 -o nsdelegate cgroup2 "$1"
	for controller in $(cat "$1/cgroup.controllers"); do
		echo "+$controller" >"$1/cgroup.subtree_control"
	done
}
legacy() { # cgroup v1, one hierarchy a controller
	mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
	for controller in $(awk '!/^#/ && $4 == 1 { print $1 }' /proc/cgroups) name=systemd; do
		dir=/sys/fs/cgroup/${controller#name=}
		mkdir "$dir"
		# 6.12 lists the controllers cpuset and memory, but is built without their v1 form.
		mount -t cgroup -o "$([ "$controller" = name=systemd ] && echo none,)$controller" cgroup "$dir" 2>/dev/null ||
			rmdir "$dir"
	done
}
case $CGROUP in
v1)
	legacy
	;;
hybrid)
	legacy
	mkdir /sys/fs/cgroup/unified
	mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup/unified
	;;
*)
	unified /sys/fs/cgroup
	;;
esac

hostname guest
ip link set lo up
for dev in /sys/class/net/eth*; do
	case $(cat "$dev/address" 2>/dev/null) in
	'') ;;
	52:54:ca:b1:*) ip link set "${dev##*/}" name cable ;;
	*) # the forwarded port; the address is QEMU's default
		ip address add 10.0.2.15/24 dev "${dev##*/}"
		ip link set "${dev##*/}" up
		;;
	esac
done
# Without duplicate address detection the GIDs are usable at once.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
if [ "$DEVICES" -gt 0 ]; then
	modprobe -a crc32_generic veth # rxe of 6.1 fails without crc32_generic
	modprobe -a rdma_rxe ib_uverbs rdma_ucm ib_umad
	ip link add v0 type veth peer name v1
	ip link set v0 up
	ip link set v1 up
	for ((i = 0; i < DEVICES; i++)); do
		ip address add "10.$((70 + i)).0.1/24" dev "v$i"
		rdma link add "rxe$i" type rxe netdev "v$i"
	done
fi

[ "$SYSTEMD" = true ] || run

# Disables the machine's own units, except the journal and sysctl: one would clean the machine's /tmp, for example.
rm -rf /lib/systemd/system/{sysinit,local-fs,timers,multi-user}.target.wants/* /etc/systemd/system/*.wants
rm -f /lib/systemd/system-generators/* # nothing to generate, and each daemon-reload waits for them
ln -s ../systemd-{journald,sysctl}.service /lib/systemd/system/sysinit.target.wants/
rm -f /usr/sbin/policy-rc.d # by which an image keeps packages from starting services
hostname >/etc/hostname
mkdir -p /run/systemd/system /run/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\n' >/run/systemd/journald.conf.d/guest.conf
cat >/run/systemd/system/guest.service <<-EOF
	[Unit]
	Description=The command of the guest
	Requires=basic.target dbus.socket
	After=basic.target dbus.socket
	DefaultDependencies=no
	[Service]
	ExecStart=/bin/bash $SHARE/.vm/guest.sh run
	Delegate=yes
	OOMScoreAdjust=0
EOF
exec /lib/systemd/systemd --unit=guest.service --show-status=no
