#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Converts a version of git describe to a package version that dpkg and rpm order correctly: ~ sorts before the end, + after it.
#   v0.1.0-rc1 → 0.1.0~rc1   v0.1.0 → 0.1.0   v0.1.0-5-gabc1234 → 0.1.0+5.gabc1234   …-dirty → ….dirty
#   without a tag: abc1234 → 0.0.0+SECONDS.gabc1234, the commit time, which a shallow clone has, too
set -eu
describe=$1
version=${describe%-dirty}
extra=
if [[ $version =~ ^(.*)-([0-9]+)-g([0-9a-f]+)$ ]]; then
	version=${BASH_REMATCH[1]} extra=${BASH_REMATCH[2]}.g${BASH_REMATCH[3]}
fi
if [[ $version =~ ^v?([0-9]+\.[0-9]+\.[0-9]+)(-([0-9A-Za-z.]+))?$ ]]; then
	version=${BASH_REMATCH[1]}${BASH_REMATCH[3]:+~${BASH_REMATCH[3]}}
elif [[ $version =~ ^[0-9a-f]{7,40}$ ]]; then
	extra=$(git log -1 --format=%ct "$version" 2>/dev/null || echo 0).g$version version=0.0.0
else
	echo "version.sh: $describe is no version: git must know this tree, or say make packages VERSION=vX.Y.Z" >&2
	exit 1
fi
[ "$describe" = "${describe%-dirty}" ] || extra=${extra:+$extra.}dirty
echo "$version${extra:++$extra}"
