// SPDX-License-Identifier: Apache-2.0

// Package guest is what tests and the demo use inside a guest of package vm: they enter it, and run containers there.
package guest

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/vm"
)

// inside names the variable that holds, in the guest, the test that is to run there.
const inside = "ACCELSCOPE_GUEST_TEST"

// Enter makes a test run inside a guest: it boots one, runs the same test of the same binary in it, passes on what it
// prints and takes over its outcome. It returns true in the guest and false outside, where the caller has nothing left to do:
//
//	if !guest.Enter(t, vm.Options{Kernel: "6.1", Devices: 2}) {
//		return
//	}
//
// opts.Command is set here. The guest runs the sub-tests that -run selects: TestNode/6.1/netlink. A guest that fails to
// run fails the test.
func Enter(t *testing.T, opts vm.Options) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	levels := strings.Split(t.Name(), "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	levels = append(levels, below(len(levels))...)
	if opts.Share == "" {
		opts.Share = t.TempDir()
	}
	out := &lines{prefix: "[" + t.Name() + "] "}
	opts.Stdout = out
	opts.Command = []string{exe, "-test.run=" + strings.Join(levels, "/"), "-test.v", "-test.count=1"}
	opts.Env = append(opts.Env, inside+"="+t.Name())
	res, err := vm.Run(t.Context(), opts)
	out.flush()
	switch {
	case err != nil:
		t.Error(err)
	case res.Status != 0:
		t.Errorf("exit status %d in the guest", res.Status)
	case out.none:
		t.Error("the guest found no such test")
	}
	return false
}

// lines passes lines on to the standard output as they come, so that a guest is seen to make progress.
type lines struct {
	prefix string
	rest   []byte // of a line that has not ended
	none   bool   // no test ran
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	if end := bytes.LastIndexByte(l.rest, '\n'); end >= 0 {
		l.print(l.rest[:end+1])
		l.rest = append(l.rest[:0], l.rest[end+1:]...)
	}
	return len(p), nil
}

func (l *lines) print(text []byte) {
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		l.none = l.none || bytes.Contains(line, []byte("no tests to run"))
		out.WriteString(l.prefix)
		out.Write(line)
	}
	_, _ = os.Stdout.Write(out.Bytes()) // at once: other guests print too
}

func (l *lines) flush() {
	if len(l.rest) > 0 {
		_, _ = l.Write([]byte("\n"))
	}
}

// below returns the patterns of -test.run for the levels of sub-tests after the first n. It returns none where the
// pattern has alternatives or brackets, in which a slash may not separate levels.
func below(n int) []string {
	pattern := flag.Lookup("test.run").Value.String()
	if levels := strings.Split(pattern, "/"); len(levels) > n && !strings.ContainsAny(pattern, "|[") {
		return levels[n:]
	}
	return nil
}
