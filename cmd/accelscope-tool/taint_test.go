// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestTaintFlags: flags that contradict each other, and a missing API server, end the command at once.
func TestTaintFlags(t *testing.T) {
	good := []string{
		"taint", "--prometheus=http://127.0.0.1:1", "--kubernetes.url=https://127.0.0.1:1", "--kubernetes.token-file=/none",
		"--kubernetes.ca-file=taint_test.go", "--web.listen-address=127.0.0.1:0",
	}
	for flag, want := range map[string]string{
		"--taint.clear-after=30s":                       "--taint.clear-after=30s: want more than --taint.set-after=30s",
		"--taint.max-nodes=0":                           "--taint.max-nodes=0",
		"--interval=3m":                                 "--interval=3m0s",
		"--kubernetes.url=http://127.0.0.1:1":           "want https://",
		"--kubernetes.url=https://user:word@127.0.0.1:": "want https://",
		"--kubernetes.url=":                             "want https://",
		"--prometheus=ftp://x":                          "--prometheus",
		"--taint.max-nodes=1":                           "CA", // a file that has no certificate
	} {
		var out, log bytes.Buffer
		err := run(t.Context(), append(good, flag), &out, &log)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "word") {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}
