// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// 4,500 clients that request /pods at once fail neither probes nor the regular scraper, and take no more memory than the connections
// that are admitted. They have 90 addresses: the limit of a client admits them all.
func TestFlood(t *testing.T) {
	const (
		requests, addresses = 4500, 90
		// memory is what the flood may add: buffers and stacks of 256 connections, four answers of some MB in the making, and as
		// much again for the garbage collector. Without limits it added 105 MB.
		memory = 48 << 20
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
		time.Sleep(1100 * time.Millisecond) // scrapes within a second count as one
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
		if err := ask(scraper, url+"/metrics"); err != nil {
			t.Errorf("the regular scraper: %v", err)
		}
	}
	after := peakMemory(t, process.Pid)
	t.Logf("%d of %d were answered; the slowest of %d probes took %v; the peak of the memory grew from %d to %d MB",
		answered.Load(), requests, n, slowest.Round(time.Millisecond), before>>20, after>>20)
	if answered.Load() == 0 {
		t.Error("no client was answered")
	}
	if after-before > memory {
		t.Errorf("the flood took %d MB, want at most %d", (after-before)>>20, memory>>20)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// clientAt returns a client with an address of the loopback network.
func clientAt(address string) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, to)
		},
	}}
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

// peakMemory returns the largest resident memory of a process so far, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(text, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
