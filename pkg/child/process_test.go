// SPDX-License-Identifier: Apache-2.0

package child

import (
	"bytes"
	"io"
	"testing"
	"time"
)

func TestStart(t *testing.T) {
	var output bytes.Buffer // read after the end
	sh := func(script string) *Process {
		t.Helper()
		p, err := Start(Program{Path: "/bin/sh", Args: []string{"-c", script}}, &output)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}

	// It answers on the socket, and exits when the socket is closed.
	p := sh("while read line; do echo \"<$line>\" >&3; done <&3; echo bye")
	if _, err := io.WriteString(p.Socket, "hello\n"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 8)
	if _, err := io.ReadFull(p.Socket, answer); err != nil || string(answer) != "<hello>\n" {
		t.Errorf("%q, %v", answer, err)
	}
	if !p.End(time.Minute) || p.Err() != nil || output.String() != "bye\n" {
		t.Errorf("%v, output %q", p.Err(), output.String())
	}
	if !p.End(time.Minute) {
		t.Error("the second time")
	}

	// It does not exit: it and its children are killed.
	p = sh("sleep 1000 & sleep 1000")
	if begin := time.Now(); !p.End(10*time.Millisecond) || time.Since(begin) > time.Minute || p.Err() == nil {
		t.Errorf("after %v: %v", time.Since(begin), p.Err())
	}

	// It ends by itself.
	p = sh("kill -SEGV $$")
	select {
	case <-p.Ended():
	case <-time.After(time.Minute):
		t.Fatal("it has not ended")
	}
	if p.Err() == nil || !p.End(0) {
		t.Error("it was killed by a signal:", p.Err())
	}
	if _, err := Start(Program{Path: "/nowhere"}, &output); err == nil {
		t.Error("a program that does not exist")
	}
}
