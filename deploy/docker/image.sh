#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# image.sh ARCHIVE: builds the Dockerfile of the top directory without a registry and without Docker, as root on Debian.
#
# debootstrap makes the builder, a replacement for golang:VERSION-bookworm, from this machine's apt mirror; it is kept
# in $CACHE/image. The build uses this machine's Go, modules and compiled packages. `make image` sets the environment:
#	VERSION  of accelscope, and a tag of the image; the manifests name the other tag
#	CACHE    directory of the files that are kept between builds
#	ARCH     amd64 or arm64
#	TARGET   accelscope, or fabric: the image with infiniband-diags, whose tag is VERSION-fabric
set -euo pipefail
archive=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
: "${VERSION:?}" "${CACHE:?}" "${ARCH:=$(dpkg --print-architecture)}" "${TARGET:=accelscope}"

work=$CACHE/image
mkdir -p "$work/debs" "$work/go-build" "$(dirname "$archive")"
exec 9>"$work/lock"
flock 9 # one build at a time: they share the builder
buildah() { command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@" 9>&-; }

machine=$(dpkg --print-architecture)
case $machine in
amd64) cross=arm64 compiler=gcc-aarch64-linux-gnu ;;
arm64) cross=amd64 compiler=gcc-x86-64-linux-gnu ;;
*) echo "image.sh: cannot build on $machine" >&2; exit 1 ;;
esac

# Debian's own suites among apt's sources, as URI, suite and component.
sources() {
	apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$1 == "Debian" { print "deb", $2, $3, $4 }' | sort -u
}
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
packages=ca-certificates,gcc,libc6-dev,$compiler,libc6-dev-$cross-cross

make_builder() {
	echo "making the builder (once a month)"
	rm -rf "$work/storage" "$work/debs" && mkdir -p "$work/debs"
	local mirror container root
	mirror=$(sources | awk -v s="$suite" '$3 == s && $4 == "main" { print $2; exit }')
	container=$(buildah from scratch)
	root=$(buildah mount "$container")
	debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$work/debootstrap.log" ||
		{ tail -n 20 "$work/debootstrap.log" >&2; return 1; }
	sources >"$root/etc/apt/sources.list"
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	chroot "$root" dpkg --add-architecture "$cross"
	chroot "$root" apt-get update -qq
	chroot "$root" apt-get clean
	rm -rf "$root"/usr/share/{doc,man,locale,info} "$root/etc/resolv.conf" "$root/debootstrap"
	mkdir -p "$root/src" "$root/usr/local/go"
	buildah umount "$container" >/dev/null
	buildah config --env PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin --env GOTOOLCHAIN=local --env GOPROXY=off \
		--env GOFLAGS=-mod=readonly --env GOMODCACHE=/mnt/modules --env GOCACHE=/mnt/build "$container"
	buildah commit --quiet --rm "$container" "$builder" >/dev/null
}
# The builder is made again when its inputs change, and once a month for Debian's updates.
key=$(echo "$packages $(sources) $(declare -f make_builder) $(date +%Y-%m)" | sha256sum | cut -c1-16)
builder=localhost/accelscope-builder:$key
buildah inspect --type image "$builder" >/dev/null 2>&1 || make_builder

# Modules are downloaded here, because the build in the builder has no network for them.
CGO_ENABLED=1 GOARCH=$ARCH go list -deps ./cmd/... >/dev/null
go list -C deploy/docker/sbom -deps . >/dev/null

epoch=$(git log -1 --format=%ct 2>/dev/null || echo 0)
image=localhost/accelscope:$TARGET-$ARCH
buildah bud --quiet --isolation chroot --format docker --identity-label=false --timestamp "$epoch" \
	--target "$TARGET" --platform "linux/$ARCH" -t "$image" \
	--volume "$(go env GOROOT):/usr/local/go:ro" --volume "$(go env GOMODCACHE):/mnt/modules:ro" \
	--volume "$work/go-build:/mnt/build" --volume "$work/debs:/var/cache/accelscope" \
	--build-arg BUILDPLATFORM="linux/$machine" --build-arg BUILDER="$builder" --build-arg VERSION="$VERSION" \
	--build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
	--build-arg CREATED="$(date -u -d "@$epoch" +%FT%TZ)" . >/dev/null

# docker-archive, not OCI: Docker before 25 loads only this, containerd loads both, and OCI has no health check. The build is
# reproducible: ids that buildah generates for its containers are removed, and the order and times of files are fixed.
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
buildah push --quiet "$image" "docker-archive:$files/push:accelscope:$VERSION"
tar -xf "$files/push" -C "$files" --exclude '*/*' # names with */* are for Docker before 1.10
rm -f "$files/push" "$files/repositories"
config=$(ls "$files" | grep -v ^manifest | grep 'json$')
sed -Ei 's/"container":"[0-9a-f]*",//; s/"Hostname":"[0-9a-f]*"/"Hostname":""/g
	s/,"parent":"sha256:[0-9a-f]*"//; s/,"comment":"FROM [0-9a-f]*"//g' "$files/$config"
renamed=$(sha256sum "$files/$config" | cut -d' ' -f1).json
[ "$config" = "$renamed" ] || mv "$files/$config" "$files/$renamed"
suffix=
[ "$TARGET" = accelscope ] || suffix=-$TARGET
manifests=$(sed -n 's/^appVersion: //p' deploy/helm/accelscope/Chart.yaml)
names="accelscope:$VERSION$suffix"
[ "$manifests" = "$VERSION" ] || names="$names accelscope:$manifests$suffix"
tags=$(printf '"%s",' $names)
tags=${tags%,}
sed -Ei "s|\"RepoTags\":\[[^]]*\]|\"RepoTags\":[$tags]|; s/$config/$renamed/" "$files/manifest.json"
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf "$archive.new" -C "$files" $(ls "$files")
mv "$archive.new" "$archive"
for layer in $(grep -o '[0-9a-f]*\.tar' "$files/manifest.json"); do # the last layer overrides the others
	tar -xf "$files/$layer" -C "$files" usr/share/sbom/accelscope.cdx.json 2>/dev/null || true
done
cp "$files/usr/share/sbom/accelscope.cdx.json" "${archive%.tar}.cdx.json"
buildah rm --all >/dev/null
buildah rmi "$image" >/dev/null
buildah rmi --prune >/dev/null
echo "$archive: $names, linux/$ARCH, $(du -h --apparent-size "$archive" | cut -f1)iB," \
	"$(gzip -1 -c "$archive" | wc -c | awk '{ printf "%.1f MiB", $1 / 1048576 }') compressed"
