// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// 4,500 clients that request /pods at once fail neither probes nor the regular scraper, and take no more memory and sockets than the
// connections that are admitted. They have 90 addresses: the limit of a client admits them all. They are a process of a lower priority,
// as clients of other machines take no CPU from the sensor. While even a sensor without a flood answers late, probes are not judged.
func TestFlood(t *testing.T) {
	const (
		// what pkg/httpserver admits, and from when it knows a scraper
		maxConnections, regularScrapes = 256, 4
		// memory is what the flood may add: buffers and stacks of 256 connections, four answers of some MB in the making, and as
		// much again for the garbage collector. Without limits it added 105 MB.
		memory = 48 << 20
		// sockets are what the process may have beside the connections of the flood: its own, and connections of probes and the scraper.
		sockets = 32
		// tooLate is the timeout of the kubelet's probes in the manifests. A probe takes 0.4 s on two CPUs. Without limits it took 10.3 s.
		tooLate = 5 * time.Second
		// busy is when the other sensor's answer says that the machine, not the flood, delays probes.
		busy = time.Second
	)
	node := fixtures.Node()
	node.Containers = 300
	m, err := fixtures.Write(t.TempDir(), node)
	if err != nil {
		t.Fatal(err)
	}
	args := func(probes string) []string {
		return []string{
			"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(), "--web.probe-address=" + probes,
			"--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node",
			"--no-collector.gpu", "--no-collector.access", "--no-collector.kernellog",
		}
	}
	probes, others := freeAddress(t), freeAddress(t)
	url, process, stop := startProcess(t, build(t), args(probes)...)
	ready(t, url)
	other, _, stopOther := startProcess(t, build(t), args(others)...)
	ready(t, other)
	scraper := clientAt("127.0.0.1")
	for range regularScrapes {
		if err := ask(scraper, url+"/metrics"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // an interval
	}
	before := peakMemory(t, process.Pid)

	flood := child.Command(t.Context(), "nice", "-n", "5", os.Args[0], "-test.run=^TestFloodClients$", "-test.v")
	flood.Env = append(os.Environ(), floodVar+"="+url)
	over, clients := make(chan struct{}), ""
	go func() {
		defer close(over)
		out, err := flood.CombinedOutput()
		if clients = string(out); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}()
	most, watched := 0, make(chan struct{})
	go func() {
		defer close(watched)
		for {
			most = max(most, openSockets(t, process.Pid))
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	probing := make(chan struct{})
	var slowest time.Duration
	n, judged := 0, 0
	go func() {
		defer close(probing)
		probe := clientAt("127.0.0.1")
		before := latency(t, probe, others)
		for during := true; during; n++ {
			select {
			case <-over:
				during = false
			default:
			}
			took, err := timed(probe, probes)
			after := latency(t, probe, others)
			if max(before, after) < busy {
				judged++
				slowest = max(slowest, took)
				if err != nil {
					t.Errorf("a probe: %v", err)
				}
			}
			before = after
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for during := true; during; {
		select {
		case <-over:
			during = false
		default:
		}
		for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
			if err := ask(scraper, url+path); err != nil {
				t.Errorf("the regular scraper: %v", err)
			}
		}
	}
	<-probing
	<-watched
	after := peakMemory(t, process.Pid)
	_, clients, _ = strings.Cut(clients, answeredText)
	clients, _, _ = strings.Cut(clients, "\n")
	t.Logf("%s were answered; the slowest of %d probes (%d judged) took %v; the peak of the memory grew from %d to %d MB; at most %d sockets",
		clients, n, judged, slowest.Round(time.Millisecond), before>>20, after>>20, most)
	if slowest > tooLate {
		t.Errorf("a probe took %v", slowest)
	}
	if after-before > memory {
		t.Errorf("the flood took %d MB, want at most %d", (after-before)>>20, memory>>20)
	}
	if most > maxConnections+sockets {
		t.Errorf("the process had %d sockets, want at most %d", most, maxConnections+sockets)
	}
	for _, stop := range []func() (time.Duration, error){stop, stopOther} {
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// Environment variable with the URL that the clients of the flood request, and what they print before the number of answers.
const (
	floodVar     = "ACCELSCOPE_FLOOD"
	answeredText = "answered: "
)

// TestFloodClients is the flood of TestFlood, in a process of its own.
func TestFloodClients(t *testing.T) {
	const requests, addresses = 4500, 90
	url := os.Getenv(floodVar)
	if url == "" {
		t.Skip("TestFlood runs it")
	}
	var answered atomic.Int64
	begin := make(chan struct{})
	var flood sync.WaitGroup
	for i := range requests {
		flood.Go(func() {
			client := clientAt(fmt.Sprintf("127.0.1.%d", 1+i%addresses))
			defer client.CloseIdleConnections()
			<-begin
			if ask(client, url+"/pods") == nil {
				answered.Add(1)
			}
		})
	}
	close(begin)
	flood.Wait()
	t.Logf(answeredText+"%d of %d", answered.Load(), requests)
	if answered.Load() == 0 {
		t.Error("no client was answered")
	}
}

// timed returns how long an address takes to answer a probe of liveness.
func timed(client *http.Client, address string) (time.Duration, error) {
	began := time.Now()
	err := ask(client, "http://"+address+"/healthz")
	return time.Since(began), err
}

// latency returns how long a sensor takes to answer a probe; an answer that fails takes for ever.
func latency(t *testing.T, client *http.Client, address string) time.Duration {
	t.Helper()
	took, err := timed(client, address)
	if err != nil {
		t.Logf("a probe of the other sensor: %v", err)
		return time.Hour
	}
	return took
}

// clientAt returns a client with an address of the loopback network.
func clientAt(address string) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: dialerAt(address).DialContext}}
}

func dialerAt(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
}

// ask sends a request and reads its answer, which must have status 200.
func ask(client *http.Client, url string) error {
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// freeAddress returns an address of the host on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// openSockets returns the number of sockets that a process has open.
func openSockets(t *testing.T, pid int) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	n := 0
	for _, f := range files {
		if target, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// peakMemory returns the largest resident memory of a process so far, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	var kib int64
	if _, err := fmt.Sscan(processStatus(t, pid, "VmHWM"), &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// processStatus returns a field of /proc/PID/status.
func processStatus(t *testing.T, pid int, field string) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "\n"+field+":")
	value, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(value)
}
