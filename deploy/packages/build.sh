#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# usage: build.sh VERSION [DIRECTORY]
# Builds the deb and the rpm into DIRECTORY (default: bin). VERSION is the output of git describe. GOARCH=arm64
# uses a cross compiler. Needs nfpm in $NFPM. COMPRESSION=gzip takes a third of the time.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${2:-bin}")
describe=$1

export ARCH=${GOARCH:-$(go env GOARCH)} CGO_ENABLED=1
if [ "$ARCH" != "$(go env GOHOSTARCH)" ]; then
	case $ARCH in
	amd64) export CC=${CC:-x86_64-linux-gnu-gcc} ;;
	arm64) export CC=${CC:-aarch64-linux-gnu-gcc} ;;
	*) echo "build.sh: there are no BPF objects for $ARCH" >&2 && exit 1 ;;
	esac
	command -v "$CC" >/dev/null || { echo "build.sh: $CC is missing: apt-get install gcc-${CC%-gcc}" >&2 && exit 1; }
fi
VERSION=$(deploy/packages/version.sh "$describe")
# The time of the last commit, so that the same tree gives the same packages.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
export VERSION STAGE

go build -trimpath -ldflags "-s -w -X main.version=$describe" -o "$STAGE/bin/" ./cmd/...
# The newest version of a libc symbol that the programs need.
GLIBC=$(readelf -V "$STAGE"/bin/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
export GLIBC=${GLIBC#GLIBC_}

mkdir "$STAGE/share"
copy() { # DIRECTORY FILE...: those that exist
	for file in "${@:2}"; do
		[ ! -e "$file" ] || install -D -m 0644 -t "$STAGE/share/$1" "$file"
	done
}
copy systemd deploy/systemd/drop-ins/*.conf
copy rules deploy/prometheus/rules/*.yaml
copy runbooks deploy/prometheus/runbooks/*.md
copy dashboards deploy/grafana/*.json
find "$STAGE/share" -type d -exec chmod 0755 {} +
gzip -9nc CHANGELOG.md >"$STAGE/changelog.gz"

sed "s/compression: xz/compression: ${COMPRESSION:-xz}/" deploy/packages/nfpm.yaml >"$STAGE/nfpm.yaml"
mkdir -p "$out"
package() { # KIND FILE RELEASE
	output=$(RELEASE=$3 "${NFPM:-nfpm}" package -f "$STAGE/nfpm.yaml" -p "$1" -t "$out/$2" 2>&1) ||
		{ echo "$output" >&2 && exit 1; }
	ls -s --block-size=K "$out/$2"
}
# A deb that the upstream project builds has no revision; an rpm always has a release.
package deb "accelscope_${VERSION}_$ARCH.deb" ""
case $ARCH in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
package rpm "accelscope-$VERSION-1.$machine.rpm" 1
