#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for this time, or some that SEED chooses, one after the other, and prints a line for each. The
# first failure is shown and ends the run.
# usage: fuzz.sh 30s [COUNT]
set -eu -o pipefail
cd "$(dirname "$0")/../.."
ulimit -v 8388608 # KiB: what takes more memory than that fails
time=${1:-30s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
targets=$(grep -rH --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*' cmd pkg | sort)
if [ -n "${2:-}" ]; then
	seed=${SEED:-$RANDOM}
	echo "stage: SEED=$seed"
	targets=$(shuf -n "$2" --random-source=<(yes "$seed") <<<"$targets")
fi
# Go now and then reports the end of its own time limit as a failure, without an input.
out_of_time() { grep -q '^    context deadline exceeded$' "$log" && ! grep -q 'Failing input' "$log"; }
while IFS=: read -r file func; do
	dir=${file%/*} target=${func#func }
	if ! go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10s \
		-parallel 2 </dev/null >"$log" 2>&1 && ! out_of_time; then
		cat "$log"
		echo "fuzz: $target in $dir fails; what fails it is kept in $dir/testdata/fuzz/$target" >&2
		exit 1
	fi
	echo "fuzz $dir $target: $(sed -n "s/^fuzz: elapsed: \(.*\) ([0-9]*\/sec)/\1/p" "$log" | tail -n 1)"
done <<<"$targets"
