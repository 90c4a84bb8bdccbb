// SPDX-License-Identifier: Apache-2.0

package libraries

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// Program is a running program. It reads orders from its standard input, and answers each with a line.
type Program struct {
	*exec.Cmd
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

// Start starts a command that runs a program. It ends with the test.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	p := &Program{Cmd: cmd, t: t}
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	t.Cleanup(p.End)
	return p
}

// Do gives an order and returns the answer.
func (p *Program) Do(format string, args ...any) string {
	p.t.Helper()
	order := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(p.in, order); err != nil {
		p.t.Fatal(err)
	}
	if !p.out.Scan() {
		p.t.Fatalf("%s: no answer: %v", order, errors.Join(p.out.Err(), io.ErrUnexpectedEOF))
	}
	return p.out.Text()
}

// OK gives an order that must succeed.
func (p *Program) OK(format string, args ...any) {
	p.t.Helper()
	if answer := p.Do(format, args...); answer != "ok" {
		p.t.Fatalf("%s: %s", fmt.Sprintf(format, args...), answer)
	}
}

// End ends the program.
func (p *Program) End() {
	if p.ProcessState != nil {
		return
	}
	_ = p.in.Close()
	if err := p.Wait(); err != nil {
		p.t.Errorf("the program's end: %v", err)
	}
}
