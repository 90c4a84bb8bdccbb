#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for a while. usage: fuzz.sh 30s
set -eu -o pipefail
time=${1:-30s}
grep -rl --include='*_test.go' '^func Fuzz' cmd pkg | xargs -n1 dirname | sort -u | while read -r dir; do
	grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -d' ' -f2 | sort | while read -r target; do
		echo "fuzz $dir $target $time"
		go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" | tail -n 1
	done
done
