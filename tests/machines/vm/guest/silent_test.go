// SPDX-License-Identifier: Apache-2.0

//go:build vm

package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

// TestSilent runs a test that hangs in a guest, with a child: the guest is ended, and the report shows both.
func TestSilent(t *testing.T) {
	if os.Getenv(inside) == t.Name() {
		go report(os.Stdin, os.Stdout)
		plantedHang()
	}
	t.Setenv("TMPDIR", t.TempDir()) // the kernel log is kept there
	text, err := captured(t, func() error {
		return run(t.Context(), t.Name(), vm.Options{Share: t.TempDir()}, limits{silence: 5 * time.Second, quit: time.Minute})
	})
	if !errors.Is(err, errSilent) {
		t.Errorf("the guest ended with %v", err)
	}
	for _, want := range []string{"[TestSilent] processes:\n", "guest.test", "[TestSilent] goroutine ", "plantedHang("} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// captured returns what f writes to the standard output.
func captured(t *testing.T, f func() error) (text string, err error) {
	t.Helper()
	stdout := os.Stdout
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = writer
	all := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		all <- string(text)
	}()
	err = f()
	os.Stdout = stdout
	writer.Close()
	return <-all, err
}

// TestUnanswered runs a test in a guest that answers no request, as if its kernel hung. The guest is run once more.
func TestUnanswered(t *testing.T) {
	dir := os.Getenv("UNANSWERED")
	if os.Getenv(inside) == t.Name() {
		if err := os.Mkdir(filepath.Join(dir, "tried"), 0o700); err == nil {
			plantedHang()
		}
		return
	}
	t.Setenv("TMPDIR", t.TempDir()) // the kernel log is kept there
	opts := vm.Options{Share: t.TempDir()}
	opts.Env = []string{"UNANSWERED=" + opts.Share}
	text, err := captured(t, func() error {
		return run(t.Context(), t.Name(), opts, limits{silence: 10 * time.Second, quit: 30 * time.Second})
	})
	if err != nil || !strings.Contains(text, "\nstage: "+vm.Again+"kernel 6.1, TestUnanswered: the guest does not answer") {
		t.Errorf("the guest ended with %v:\n%s", err, text)
	}
}

func plantedHang() { time.Sleep(time.Hour) }
