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
)

// 4,500 clients that request /pods at once fail neither probes nor the regular scraper, and take no more memory and sockets than the
// connections that are admitted. They have 90 addresses: the limit of a client admits them all.
func TestFlood(t *testing.T) {
	const (
		requests, addresses = 4500, 90
		// what pkg/httpserver admits, and from when it knows a scraper
		maxConnections, regularScrapes = 256, 4
		// memory is what the flood may add: buffers and stacks of 256 connections, four answers of some MB in the making, and as
		// much again for the garbage collector. Without limits it added 105 MB.
		memory = 48 << 20
		// sockets are what the process may have beside the connections of the flood: its own, and connections of probes and the scraper.
		sockets = 32
		// tooLate is the timeout of the kubelet's probes in the manifests. A probe takes 0.4 s on two CPUs. Without limits it took 10.3 s.
		tooLate = 5 * time.Second
	)
	node := fixtures.Node()
	node.Containers = 300
	m, err := fixtures.Write(t.TempDir(), node)
	if err != nil {
		t.Fatal(err)
	}
	probes := freeAddress(t)
	url, process, stop := startProcess(t, build(t),
		"--path.sysfs="+m.SysFS(), "--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS(), "--web.probe-address="+probes,
		"--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node",
		"--no-collector.gpu", "--no-collector.access", "--no-collector.kernellog")
	ready(t, url)
	scraper := clientAt("127.0.0.1")
	for range regularScrapes {
		if err := ask(scraper, url+"/metrics"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // an interval
	}
	before := peakMemory(t, process.Pid)

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
	over := make(chan struct{})
	go func() {
		defer close(over)
		flood.Wait()
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
	close(begin)
	probe := clientAt("127.0.0.1")
	var slowest time.Duration
	n := 0
	for during := true; during; n++ {
		select {
		case <-over:
			during = false
		default:
		}
		began := time.Now()
		if err := ask(probe, "http://"+probes+"/healthz"); err != nil {
			t.Errorf("a probe: %v", err)
		}
		slowest = max(slowest, time.Since(began))
		for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
			if err := ask(scraper, url+path); err != nil {
				t.Errorf("the regular scraper: %v", err)
			}
		}
	}
	<-watched
	after := peakMemory(t, process.Pid)
	t.Logf("%d of %d were answered; the slowest of %d probes took %v; the peak of the memory grew from %d to %d MB; at most %d sockets",
		answered.Load(), requests, n, slowest.Round(time.Millisecond), before>>20, after>>20, most)
	if answered.Load() == 0 {
		t.Error("no client was answered")
	}
	if slowest > tooLate {
		t.Errorf("a probe took %v", slowest)
	}
	if after-before > memory {
		t.Errorf("the flood took %d MB, want at most %d", (after-before)>>20, memory>>20)
	}
	if most > maxConnections+sockets {
		t.Errorf("the process had %d sockets, want at most %d", most, maxConnections+sockets)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
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
