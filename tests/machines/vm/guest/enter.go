// SPDX-License-Identifier: Apache-2.0

// Package guest has functions for tests and the demo inside a guest of package vm: they enter the guest, and run
// containers in it.
package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// inside is the environment variable that contains, in the guest, the name of the test to run.
const inside = "ACCELSCOPE_GUEST_TEST"

// Enter runs a test inside a guest: it boots a guest, runs the same test of the same binary in it, passes on its output
// and result. It returns true in the guest and false outside, where the caller has nothing left to do:
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
		go report(os.Stdin, os.Stdout)
		return true
	}
	if opts.Share == "" {
		opts.Share = t.TempDir()
	}
	l := limits{silence: vm.Silence, quit: vm.Quit}
	if opts.Kernel == vm.DebugKernel { // several times slower
		l.silence *= 5
	}
	if err := run(t.Context(), t.Name(), opts, l); err != nil {
		t.Error(err)
	}
	return false
}

// limits holds the time for which a test in a guest may print nothing, and the time for its report after this.
type limits struct{ silence, quit time.Duration }

var (
	errSilent     = errors.New("the guest makes no progress")
	errUnanswered = errors.New("the guest does not answer")
)

// run runs a test of this binary in a guest. If the guest itself hangs, it is run once more on one thread, as by
// vm.Run.
func run(ctx context.Context, test string, opts vm.Options, l limits) error {
	err := try(ctx, test, opts, l)
	if errors.Is(err, errUnanswered) && !opts.OneThread && vm.RunsAgain(os.Stdout, opts.Kernel, fmt.Errorf("%s: %w", test, err)) {
		opts.OneThread = true
		err = try(ctx, test, opts, l)
	}
	return err
}

// try is one try of run. If a test prints nothing for the duration of silence, try requests its goroutines and the
// processes of the guest, and then ends the guest: with errUnanswered if the guest printed nothing after the request.
// Before the first output the guest boots, which has its own limit.
func try(ctx context.Context, test string, opts vm.Options, l limits) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	levels := strings.Split(test, "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	levels = append(levels, below(len(levels))...)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdin, asked := io.Pipe()
	defer asked.Close()
	out := &lines{prefix: "[" + test + "] "}
	out.silent = time.AfterFunc(math.MaxInt64, func() {
		out.answered.Store(false)
		go asked.Write([]byte(ask)) //nolint:errcheck // a guest that hangs reads nothing
		time.AfterFunc(l.quit, func() {
			cause := errSilent
			if !out.answered.Load() {
				cause = errUnanswered
			}
			cancel(fmt.Errorf("%w: no output for %v", cause, l.silence))
		})
	})
	defer out.silent.Stop()
	out.silence = l.silence
	opts.Stdin, opts.Stdout = stdin, out
	opts.Command = []string{exe, "-test.run=" + strings.Join(levels, "/"), "-test.v", "-test.count=1"}
	opts.Env = append(opts.Env, inside+"="+test)
	res, err := vm.Run(ctx, opts)
	out.flush()
	switch cause := context.Cause(ctx); {
	case cause != nil && err != nil:
		return fmt.Errorf("%w: %w", cause, err)
	case err != nil:
		return err
	case res.Status != 0:
		return fmt.Errorf("exit status %d in the guest", res.Status)
	case out.none:
		return errors.New("the guest found no such test")
	}
	return nil
}

// ask is the request for a report, written to the test's standard input.
const ask = "report\n"

// report prints all goroutines and the processes of the guest when it is asked.
func report(in io.Reader, out io.Writer) {
	for asked := bufio.NewScanner(in); asked.Scan(); {
		if asked.Text()+"\n" == ask {
			_ = pprof.Lookup("goroutine").WriteTo(out, 2) // first, as ps may hang
			processes, _ := child.Command(context.Background(), "ps", "-eo", "pid,ppid,stat,wchan:24,etimes,args", "--forest").Output()
			fmt.Fprintf(out, "processes:\n%s", processes)
		}
	}
}

// lines copies lines to the standard output as they arrive, so that progress is visible.
type lines struct {
	prefix string
	rest   []byte // of an incomplete line
	none   bool   // no test ran

	silent   *time.Timer // expires when, after the first line, nothing is written for the duration of silence
	silence  time.Duration
	answered atomic.Bool // something was written since it expired
}

func (l *lines) Write(p []byte) (int, error) {
	l.answered.Store(true)
	if l.silent.Stop() { // it has not expired
		l.silent.Reset(l.silence)
	}
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

// below returns the patterns of -test.run for the levels of sub-tests after the first n. It returns no patterns if
// there are alternatives or brackets, in which a slash may not separate levels.
func below(n int) []string {
	pattern := flag.Lookup("test.run").Value.String()
	if levels := strings.Split(pattern, "/"); len(levels) > n && !strings.ContainsAny(pattern, "|[") {
		return levels[n:]
	}
	return nil
}
