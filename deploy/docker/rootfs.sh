#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rootfs.sh ARCH OUT, run in a Debian builder: writes all files of the image except the binary.
#	OUT/base             glibc, certificates, and the few files of /etc that the C library reads
#	OUT/fabric           programs and libraries of infiniband-diags that --collector.fabric runs
#	OUT/packages         the Debian packages of OUT/base, OUT/packages-fabric the packages of OUT/fabric:
#	                     name, version, architecture, SHA-256 and license, by tabs
#	OUT/cc               the compiler for ARCH
# Files come from the packages of ARCH, not from the builder, so native and cross builds are equal.
set -eu
arch=$1 out=$2

case $arch in
amd64) triplet=x86_64-linux-gnu loader=lib64/ld-linux-x86-64.so.2 ;;
arm64) triplet=aarch64-linux-gnu loader=lib/ld-linux-aarch64.so.1 ;;
*) echo "rootfs.sh: no image for $arch: amd64 or arm64" >&2; exit 1 ;;
esac

export DEBIAN_FRONTEND=noninteractive
lists() { [ -n "$(apt-get indextargets --format '$(FILENAME)' "Architecture: $1" | xargs -r ls 2>/dev/null)" ]; }

cc=gcc
[ "$arch" = "$(dpkg --print-architecture)" ] || cc=$triplet-gcc
command -v $cc >/dev/null || {
	apt-get update -qq
	case $cc in
	gcc) apt-get install -y -qq --no-install-recommends gcc libc6-dev ;;
	*) apt-get install -y -qq --no-install-recommends "gcc-$(echo "$triplet" | tr _ -)" "libc6-dev-$arch-cross" ;;
	esac
}
mkdir -p "$out/base" "$out/fabric/usr/sbin" "$out/tmp" /var/cache/accelscope
echo $cc >"$out/cc"

dpkg --add-architecture "$arch"
lists "$arch" || apt-get update -qq

fetch() { (cd /var/cache/accelscope && apt-get download -qq -o APT::Sandbox::User=root "$1"); }

# unpack FILE PACKAGE LICENSE: downloads a package, unless it is there, unpacks it in OUT/tmp/PACKAGE, and adds it to FILE.
unpack() {
	fetch "$2" 2>/dev/null || { apt-get update -qq && fetch "$2"; } # lists may be too old
	name=${2%:*}
	deb=$(ls -t /var/cache/accelscope/"$name"_*_"$arch".deb /var/cache/accelscope/"$name"_*_all.deb 2>/dev/null | head -n 1)
	dpkg-deb -x "$deb" "$out/tmp/$name"
	printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$(dpkg-deb -f "$deb" Version)" "$(dpkg-deb -f "$deb" Architecture)" \
		"$(sha256sum "$deb" | cut -d' ' -f1)" "$3" >>"$out/$1"
}

# copy DIR PACKAGE NAME...: copies shared libraries, from /lib or, after Debian's merge of /usr, from /usr/lib.
copy() {
	to=$1/usr/lib/$triplet from=$out/tmp/$2
	mkdir -p "$to" "$1/usr/share/doc/$2"
	cp "$from/usr/share/doc/$2/copyright" "$1/usr/share/doc/$2/"
	shift 2
	for name; do
		for dir in "$from/lib/$triplet" "$from/usr/lib/$triplet"; do
			[ ! -e "$dir/$name" ] || install -m 755 "$dir/$name" "$to/$name"
		done
		[ -f "$to/$name" ] || { echo "rootfs.sh: $from has no $name" >&2; exit 1; }
	done
}

unpack packages "libc6:$arch" LGPL-2.1-or-later
unpack packages ca-certificates 'MPL-2.0 AND GPL-2.0-or-later'
# The binary needs libc.so.6. NVIDIA's library and the resolution of host names need the others.
copy "$out/base" libc6 "${loader##*/}" libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 \
	libresolv.so.2 libnss_dns.so.2 libnss_files.so.2
copy "$out/base" ca-certificates

cd "$out/base"
mkdir -p dev etc/ssl/certs proc run sys usr/bin usr/sbin usr/lib64
ln -s usr/bin bin
ln -s usr/sbin sbin
ln -s usr/lib lib
ln -s usr/lib64 lib64
ln -sr "usr/lib/$triplet/${loader##*/}" "usr/$loader"
cat "$out"/tmp/ca-certificates/usr/share/ca-certificates/mozilla/*.crt >etc/ssl/certs/ca-certificates.crt
echo 'root:x:0:0:root:/:/sbin/nologin
nobody:x:65534:65534:nobody:/:/sbin/nologin' >etc/passwd
echo 'root:x:0:
nogroup:x:65534:' >etc/group
echo 'passwd: files
group: files
hosts: files dns' >etc/nsswitch.conf

for name in infiniband-diags libibnetdisc5 libibmad5 libibumad3; do
	unpack packages-fabric "$name:$arch" 'GPL-2.0-only OR Linux-OpenIB'
done
copy "$out/fabric" libibnetdisc5 libibnetdisc.so.5
copy "$out/fabric" libibmad5 libibmad.so.5
copy "$out/fabric" libibumad3 libibumad.so.3
copy "$out/fabric" infiniband-diags
for name in ibnetdiscover ibqueryerrors iblinkinfo perfquery sminfo; do
	install -m 755 "$out/tmp/infiniband-diags/usr/sbin/$name" "$out/fabric/usr/sbin/"
done
cp -r "$out/tmp/infiniband-diags/etc" "$out/fabric/"
rm -r "$out/tmp"
