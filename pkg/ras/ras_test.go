// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const modeVar = "ACCELSCOPE_FAKE_RAS" // how the FAKE RAS answers: fully, never, as another program, or not

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVar); mode != "" {
		fmt.Fprintln(os.Stderr, serve(mode))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serve is a FAKE RAS in a network namespace of its own. It prints each connection.
func serve(mode string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:28028")
	if err != nil {
		return err
	}
	go func() { // ends with the test. The thread of the test that starts this process may end earlier, with a signal or not.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("listens")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Println("connection")
		go answer(conn, mode)
	}
}

// answer answers as src/ras/client_support.cc of NCCL 2.30.7 does.
func answer(conn net.Conn, mode string) {
	defer conn.Close()
	if mode == "never" {
		time.Sleep(time.Hour)
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch {
		case mode == "other":
			fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\x1b[2J\r\n")
			return
		case lines.Text() == "CLIENT PROTOCOL 2":
			fmt.Fprintln(conn, "SERVER PROTOCOL 2")
		case lines.Text() == "TIMEOUT 5":
			fmt.Fprintln(conn, "OK")
		case lines.Text() == "VERBOSE STATUS" && mode == "full":
			fmt.Fprint(conn, "NCCL version 2.31.1\n\nJob summary\n===========\n\x1b[2JRUNNING\n")
			return
		case lines.Text() == "VERBOSE STATUS" && mode == "long":
			_, _ = conn.Write(bytes.Repeat(append(bytes.Repeat([]byte("rank"), 2500), '\n'), maxAnswer/10000+1))
			return
		default:
			return
		}
	}
}

// start starts a FAKE RAS, and returns its PID and what it prints from then on.
func start(t *testing.T, mode string) (pid int, output *bufio.Scanner) {
	t.Helper()
	cmd := child.Command(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), modeVar+"="+mode)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	in, err := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(err, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	output = bufio.NewScanner(out)
	for output.Scan() {
		if output.Text() == "listens" {
			return cmd.Process.Pid, output
		}
	}
	t.Fatal("the FAKE RAS does not listen")
	return 0, nil
}

func ask(t *testing.T, timeout time.Duration, port uint16, pids ...int) (out string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var b bytes.Buffer
	err = Ask(ctx, "/proc", port, pids, &b)
	return b.String(), err
}

// TestAsk: RAS is asked in the network namespace of its process, whichever process of the job listens.
func TestAsk(t *testing.T) {
	pid, connections := start(t, "full")
	want := fmt.Sprintf("process %d at 127.0.0.1:28028:\nNCCL version 2.31.1\n\nJob summary\n===========\n?[2JRUNNING\n", pid)
	for _, pids := range [][]int{{pid}, {os.Getpid(), pid}, {1 << 30, pid}} {
		if got, err := ask(t, time.Minute, 28028, pids...); err != nil || got != want {
			t.Errorf("%v: %v\n%q\nwant %q", pids, err, got, want)
		}
		if connections.Scan(); connections.Text() != "connection" {
			t.Errorf("the FAKE RAS prints %q", connections.Text())
		}
	}
	if got, err := ask(t, time.Minute, 28029, pid); err == nil || !strings.Contains(err.Error(), "no RAS listens at port 28029") {
		t.Errorf("%q, error %v", got, err)
	}
}

// TestAnotherProcess: a socket of another process in the network namespace is not connected to.
func TestAnotherProcess(t *testing.T) {
	l, err := net.Listen("tcp", ":0") // all addresses, by IPv6
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := child.Command(t.Context(), "cat")
	other.SysProcAttr = nil // the thread that starts it may end earlier
	in, err := other.StdinPipe()
	if err := errors.Join(err, other.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = other.Wait()
	}()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if got, err := ask(t, time.Minute, port, other.Process.Pid); err == nil || !strings.Contains(err.Error(), "no RAS listens") {
		t.Errorf("%q, error %v", got, err)
	}
	if got, err := ask(t, time.Second, port, os.Getpid()); !errors.Is(err, os.ErrDeadlineExceeded) { // it connects, and nobody accepts
		t.Errorf("its own socket: %q, error %v", got, err)
	}
}

// TestAnswers: answers that are not from RAS, too long, or never come.
func TestAnswers(t *testing.T) {
	for mode, want := range map[string]string{
		"never": "i/o timeout", "other": `it answers "HTTP/1.1 400 Bad Request?[2J`, "none": "RAS ended the connection",
		"long": "the answer is incomplete: more than 4 MiB",
	} {
		t.Run(mode, func(t *testing.T) {
			pid, _ := start(t, mode)
			timeout := time.Minute
			if mode == "never" {
				timeout = 300 * time.Millisecond
			}
			if _, err := ask(t, timeout, 28028, pid); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// TestLongLine: a line is read up to the limit.
func TestLongLine(t *testing.T) {
	for length, want := range map[int]error{maxLine - 1: nil, maxLine + 1: bufio.ErrTooLong} {
		answer := "SERVER PROTOCOL 2\nOK\n" + strings.Repeat("x", length) + "\n"
		conn := struct {
			io.Reader
			io.Writer
		}{strings.NewReader(answer), io.Discard}
		if err := talk(conn, io.Discard); !errors.Is(err, want) {
			t.Errorf("a line of %d bytes: %v, want %v", length, err, want)
		}
	}
}
