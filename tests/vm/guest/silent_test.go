// SPDX-License-Identifier: Apache-2.0

//go:build vm

package guest

import (
	"errors"
	"io"
	"os"
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
	err = run(t.Context(), t.Name(), vm.Options{Share: t.TempDir()}, 5*time.Second)
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

func plantedHang() { time.Sleep(time.Hour) }
