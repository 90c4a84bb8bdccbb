// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// limitFaults are the faults of the node's resources, its clock and the sensor's clients.
func (k *soak) limitFaults() []fault {
	var before unix.Rlimit
	return []fault{
		{
			"full disk",
			[]string{"containerd", "dockerd"},
			func() error { return resize(fill) },
			func() error { return resize(func(string) (string, error) { return "50%", nil }) },
		},
		{
			"descriptor limit",
			[]string{"sensor"},
			func() error {
				files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", k.s.cmd.Process.Pid))
				if err != nil {
					return err
				}
				if err := unix.Prlimit(k.s.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
					return err
				}
				limit := before
				limit.Cur = uint64(len(files)) + 8
				return unix.Prlimit(k.s.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil)
			},
			func() error { return unix.Prlimit(k.s.cmd.Process.Pid, unix.RLIMIT_NOFILE, &before, nil) },
		},
		{
			"memory limit",
			[]string{"sensor"},
			func() error {
				text, err := os.ReadFile(filepath.Join(sensorCgroup, "memory.current"))
				if err != nil {
					return err
				}
				used, err := strconv.Atoi(strings.TrimSpace(string(text)))
				if err != nil {
					return err
				}
				return setMemoryMax(strconv.Itoa(used + 24<<20))
			},
			func() error { return setMemoryMax("max") },
		},
		k.clockStep("clock an hour ahead", time.Hour),
		k.clockStep("clock an hour back", -time.Hour),
		k.repeated("16 parallel scrapers", []string{"sensor"}, k.scrapeInParallel),
	}
}

func setMemoryMax(value string) error {
	return os.WriteFile(filepath.Join(sensorCgroup, "memory.max"), []byte(value), 0o644)
}

// resize sets the sizes of the file systems of /run and of the runtimes' state.
func resize(size func(dir string) (string, error)) (all error) {
	for _, dir := range []string{"/run", "/var/lib/containerd", "/var/lib/docker"} {
		to, err := size(dir)
		if err == nil {
			err = unix.Mount("", dir, "", unix.MS_REMOUNT, "size="+to)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("remount %s with size %s: %w", dir, to, err))
		}
	}
	return all
}

func fill(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", err
	}
	const rest = 64 << 10 // what is written until the remount
	return strconv.FormatUint((s.Blocks-s.Bfree)*uint64(s.Bsize)+rest, 10), nil
}

func (k *soak) clockStep(name string, by time.Duration) fault {
	step := func(by time.Duration) error {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			return err
		}
		now.Sec += int64(by / time.Second)
		return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
	}
	return fault{name, []string{"clock"}, func() error { return step(by) }, func() error { return step(-by) }}
}

// scrapeInParallel scrapes 16 times at once. Each client has its own address, like the servers of Prometheus.
func (k *soak) scrapeInParallel(ctx context.Context) error {
	url := k.s.url + "/metrics"
	var all sync.WaitGroup
	for i := range 16 {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i))}}
		client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
		all.Go(func() {
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				// The responses do not matter: the sensor may refuse them.
				if _, _, err := get(ctx, client, url, scrapeLimit); err != nil {
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	return nil
}
