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

	"github.com/accelscope/accelscope/tests/vm"
)

// TestSilent runs a test that hangs in a guest, with a child: the guest is ended, and the report shows both.
func TestSilent(t *testing.T) {
	if os.Getenv(inside) == t.Name() {
		go report(os.Stdin, os.Stdout)
		plantedHang()
	}
	stdout := os.Stdout
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = writer
	printed := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		printed <- string(text)
	}()
	err = run(t.Context(), t.Name(), vm.Options{Share: t.TempDir()}, limits{silence: 5 * time.Second, quit: 20 * time.Second})
	os.Stdout = stdout
	writer.Close()
	text := <-printed
	if !errors.Is(err, errSilent) {
		t.Errorf("the guest ended with %v", err)
	}
	for _, want := range []string{"[TestSilent] processes:\n", "guest.test", "[TestSilent] goroutine ", "plantedHang("} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// TestUnanswered runs a test in a guest that hangs as if its kernel did: it answers no request. It is tried once more.
func TestUnanswered(t *testing.T) {
	dir := os.Getenv("UNANSWERED")
	if os.Getenv(inside) == t.Name() {
		if err := os.Mkdir(filepath.Join(dir, "tried"), 0o700); err == nil {
			plantedHang()
		}
		return
	}
	opts := vm.Options{Share: t.TempDir()}
	opts.Env = []string{"UNANSWERED=" + opts.Share}
	if err := run(t.Context(), t.Name(), opts, limits{silence: 5 * time.Second, quit: 5 * time.Second}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(opts.Share, "tried")); err != nil {
		t.Errorf("it was not tried twice: %v", err)
	}
}

func plantedHang() { time.Sleep(time.Hour) }
