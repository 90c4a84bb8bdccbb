// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const rasVar = "ACCELSCOPE_FAKE_RAS" // how the FAKE RAS answers: fully, never, as another program, or not

func TestMain(m *testing.M) {
	if mode := os.Getenv(rasVar); mode != "" {
		fmt.Fprintln(os.Stderr, serveRAS(mode))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveRAS is a FAKE RAS in a network namespace of its own. It prints each connection.
func serveRAS(mode string) error {
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
		go fakeRAS(conn, mode)
	}
}

// fakeRAS answers as src/ras/client_support.cc of NCCL 2.30.7 does.
func fakeRAS(conn net.Conn, mode string) {
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
			_, _ = conn.Write(bytes.Repeat(append(bytes.Repeat([]byte("rank"), 2500), '\n'), maxRAS/10000+1))
			return
		default:
			return
		}
	}
}

// startRAS starts a FAKE RAS, and returns its PID and what it prints from then on.
func startRAS(t *testing.T, mode string) (pid int, output *bufio.Scanner) {
	t.Helper()
	cmd := child.Command(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), rasVar+"="+mode)
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

// sensorOf is a sensor that knows ranks of a version of NCCL.
func sensorOf(t *testing.T, version, message string, ranks ...api.CommunicatorRank) string {
	t.Helper()
	known := api.Collectives{Communicators: []api.Communicator{{Communicator: "b0", Library: "nccl", Version: version, Ranks: ranks}}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != api.CollectivesPath {
			t.Errorf("asks %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"code": 0, "message": message, "data": known})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func rankOf(namespace, pod string, pid int, ago time.Duration) api.CommunicatorRank {
	r := api.CommunicatorRank{Owner: identity.Owner{Workload: namespace + "/" + pod + "/worker", Namespace: namespace, Pod: pod}, PID: pid}
	if ago != 0 {
		r.ProcessLastLaunch = new(time.Now().Add(-ago))
	}
	return r
}

func rasOutput(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = run(t.Context(), append([]string{"job", "ras"}, args...), &stdout, &stderr)
	return stdout.String(), err
}

// TestJobRAS: RAS is asked in the network namespace of the pod, in a process of the pod, if the job stands.
func TestJobRAS(t *testing.T) {
	pid, connections := startRAS(t, "full")
	const stood = 2 * time.Minute
	full := fmt.Sprintf("process %d at 127.0.0.1:28028:\nNCCL version 2.31.1\n\nJob summary\n===========\n?[2JRUNNING\n", pid)
	for _, tt := range []struct {
		name, version, message, pod string
		ranks                       []api.CommunicatorRank
		args                        []string
		want                        string // of the error; empty: the answer is printed
	}{
		{name: "stands", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)}},
		{name: "namespace", pod: "ml/llama-0", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood), rankOf("other", "llama-0", 1, stood)}},
		{name: "workload", pod: "ml/llama-0/worker", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)}},
		{
			name:  "not the first rank", // in a namespace only one process listens
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", os.Getpid(), stood), rankOf("ml", "llama-0", pid, stood)},
		},
		{
			name:  "one launches",
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood), rankOf("ml", "llama-0", 7, 2*time.Second)},
			want:  "process 7 launched ",
		},
		{name: "starts", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, 0)}, want: "it may be starting"},
		{name: "clock was set", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, -time.Hour)}, want: " launched "},
		{
			name: "forced", version: "2.28.9", args: []string{"--force"},
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, time.Second)},
		},
		{
			name: "crashes", version: "2.30.7", want: "crashes are known of version 2.30.7",
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)},
		},
		{
			name: "no version", version: "-", want: "the version of the library is unknown",
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)},
		},
		{
			name: "before RAS", version: "2.23.4", want: "version 2.23.4 has no RAS",
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)},
		},
		{
			name: "partial", message: "partial: collective is late", want: "collective is late",
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)},
		},
		{
			name: "two pods", want: "llama-0 is in several namespaces",
			ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood), rankOf("other", "llama-0", pid, stood)},
		},
		{name: "unknown", pod: "llama-1\x1b[2J", want: "no rank of llama-1?[2J on", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", pid, stood)}},
		{name: "without owner", pod: "/", want: "no rank of / on", ranks: []api.CommunicatorRank{{PID: pid}}},
		{name: "ended", want: "no such file", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", 1<<30, stood)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := sensorOf(t, or(tt.version, "2.31.1"), or(tt.message, "success"), tt.ranks...)
			got, err := rasOutput(t, append(tt.args, "--url="+url, or(tt.pod, "llama-0"))...)
			switch {
			case tt.want == "" && (err != nil || got != full):
				t.Errorf("%v\n%q\nwant %q", err, got, full)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || got != ""):
				t.Errorf("%q, error %v, want %q", got, err, tt.want)
			case tt.want == "":
				if connections.Scan(); connections.Text() != "connection" {
					t.Errorf("the FAKE RAS prints %q", connections.Text())
				}
			}
		})
	}
	if got, err := rasOutput(t, "--url="+sensorOf(t, "2.31.1", "success", rankOf("ml", "a", pid, stood)), "--port=28029", "a"); err == nil {
		t.Errorf("asks at another port: %q", got)
	}
	if _, err := rasOutput(t, "--url=http://198.51.100.1", "a"); err == nil || !strings.Contains(err.Error(), "another node") {
		t.Errorf("the sensor of another node: %v", err)
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// TestJobRASOfAnother: a socket of another process in the namespace is not connected to.
func TestJobRASOfAnother(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := child.Command(t.Context(), "cat")
	other.SysProcAttr = nil
	in, err := other.StdinPipe()
	if err := errors.Join(err, other.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = other.Wait()
	}()
	url := sensorOf(t, "2.31.1", "success", rankOf("ml", "a", other.Process.Pid, time.Hour))
	port := fmt.Sprintf("--port=%d", l.Addr().(*net.TCPAddr).Port)
	if got, err := rasOutput(t, "--url="+url, port, "a"); err == nil || !strings.Contains(err.Error(), "no RAS listens") {
		t.Errorf("%q, error %v", got, err)
	}
	url = sensorOf(t, "2.31.1", "success", rankOf("ml", "a", os.Getpid(), time.Hour))
	if _, err := rasOutput(t, "--url="+url, port, "--timeout=50ms", "a"); err == nil || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("its own process, which accepts nothing: %v", err)
	}
}

// TestJobRASAnswers: answers that are not of RAS, too long, or never come.
func TestJobRASAnswers(t *testing.T) {
	for mode, want := range map[string]string{
		"never": "no answer within 300ms", "other": `it answers "HTTP/1.1 400 Bad Request?[2J`, "none": "RAS ended the connection",
		"long": "the answer is incomplete: more than 4 MiB",
	} {
		t.Run(mode, func(t *testing.T) {
			pid, _ := startRAS(t, mode)
			timeout := "--timeout=30s"
			if mode == "never" {
				timeout = "--timeout=300ms"
			}
			url := sensorOf(t, "2.31.1", "success", rankOf("ml", "a", pid, time.Hour))
			if _, err := rasOutput(t, "--url="+url, timeout, "a"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}
