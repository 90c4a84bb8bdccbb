// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// mlxlink reads the bit errors of ports of mlx5 with NVIDIA's tool of this name: the firmware counts them, also for
// InfiniBand, and the kernel does not report them. The tool asks the firmware through the PCI function, without the
// network stack: it takes no RTNL, and runs while a driver hangs. It has its own goroutine and budget. One function is
// read after the other.
type mlxlink struct {
	program  func(ctx context.Context, address string) (stdout, stderr []byte, err error) // runs the tool
	deadline time.Duration

	mu    sync.Mutex
	ports map[string]*mlxlinkPort // by PCI address
}

// function is a PCI function of mlx5 with its first port.
type function struct {
	address string // 0000:81:00.0
	port
	netdev string // empty without an interface
}

type mlxlinkPort struct {
	function
	due     time.Time
	backoff hang.Backoff
	facts   *model.BitErrors // nil unless the last run succeeded
	err     error            // of the last run
}

const (
	mlxlinkInterval = time.Minute      // of the runs for a function
	mlxlinkDeadline = 10 * time.Second // of a run, which takes a second
	mlxlinkRest     = 19               // the pause after a run is this many times its duration
	mlxlinkOutput   = 1 << 20          // bytes: the largest output known has 10 KiB
)

func newMlxlink(path string) (*mlxlink, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the path of mlxlink must be absolute, not %q", path)
	}
	runner := &child.Runner{MaxStuck: 1}
	run := func(ctx context.Context, address string) ([]byte, []byte, error) {
		return runner.Run(ctx, child.Program{
			Path: path, Args: mlxlinkArgs(address), Dir: "/", Env: []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			MaxStdout: mlxlinkOutput, MaxStderr: 64 << 10,
		})
	}
	return &mlxlink{program: run, deadline: mlxlinkDeadline, ports: map[string]*mlxlinkPort{}}, nil
}

// mlxlinkArgs are queries only. The tool's option to clear the counters is --pc.
func mlxlinkArgs(address string) []string {
	return []string{"--device", address, "--show_counters", "--json"}
}

func (m *mlxlink) run(ctx context.Context) {
	for {
		pause := time.Second
		if p := m.next(time.Now()); p != nil {
			began := time.Now()
			facts, err := m.read(ctx, p.function)
			m.finish(p, facts, err, time.Now())
			pause = max(pause, mlxlinkRest*time.Since(began))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// next returns the function that has been due for the longest time.
func (m *mlxlink) next(now time.Time) (next *mlxlinkPort) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ports {
		if !now.Before(p.due) && !p.backoff.Waiting(now) && (next == nil || p.due.Before(next.due)) {
			next = p
		}
	}
	return next
}

func (m *mlxlink) read(ctx context.Context, f function) (*model.BitErrors, error) {
	ctx, cancel := context.WithTimeout(ctx, m.deadline)
	defer cancel()
	facts := &model.BitErrors{Device: f.device, Port: f.number, Netdev: f.netdev, Read: time.Now()}
	stdout, stderr, err := m.program(ctx, f.address)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("mlxlink: no answer in %v", m.deadline)
	}
	// With a nonzero status the output can be complete: then another query has failed.
	if parsed := parseMlxlink(stdout, facts); parsed == nil || err == nil {
		return facts, parsed
	}
	if message := lastLine(stderr); message != "" {
		return nil, fmt.Errorf("mlxlink: %w: %s", err, message)
	}
	return nil, fmt.Errorf("mlxlink: %w", err)
}

func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return boundedfile.Line(text[bytes.LastIndexByte(text, '\n')+1:], 256)
}

// finish keeps the result of a run. An old fact is dropped: the state has the reason.
func (m *mlxlink) finish(p *mlxlinkPort, facts *model.BitErrors, err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.due, p.facts, p.err = now.Add(mlxlinkInterval), facts, err
	if err != nil {
		p.facts = nil
		p.backoff.Failed(now)
	} else {
		p.backoff = hang.Backoff{}
	}
}

func (m *mlxlink) update(found []function) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ports := make(map[string]*mlxlinkPort, len(found))
	for _, f := range found {
		p := m.ports[f.address]
		if p == nil || p.function != f {
			p = &mlxlinkPort{function: f}
		}
		ports[f.address] = p
	}
	m.ports = ports
}

func (m *mlxlink) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ports) == 0
}

// publish adds the facts, and the states of functions that are not ok.
func (m *mlxlink) publish(s *model.Snapshot, source string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.BitErrors = []model.BitErrors{}
	for _, p := range m.ports {
		if p.facts != nil {
			s.BitErrors = append(s.BitErrors, *p.facts)
		}
		if p.err == nil {
			continue
		}
		d := model.DeviceState{Source: source, Device: p.address, State: model.StateFailed, Reason: p.err.Error()}
		if p.backoff.Waiting(now) {
			d.State = model.StateQuarantined
			d.Reason = fmt.Sprintf("not read for %v: %v", p.backoff.Left(now).Round(time.Second), p.err)
		}
		s.DeviceStates = append(s.DeviceStates, d)
	}
	slices.SortFunc(s.BitErrors, func(a, b model.BitErrors) int {
		return strings.Compare(a.Device+" "+a.Netdev, b.Device+" "+b.Netdev)
	})
}

// functions lists the functions of mlx5 below interfaces and chosen HCAs; VFs have no link of their own.
func functions(sysfs string, chosen func(device string) bool, interfaces []iface) ([]function, error) {
	var list []function
	add := func(dir string, p port, netdev string) {
		driver, err := os.Readlink(filepath.Join(dir, "device/driver"))
		path, failed := os.Readlink(filepath.Join(dir, "device"))
		address := filepath.Base(path)
		if errors.Join(err, failed) != nil || filepath.Base(driver) != "mlx5_core" ||
			!model.IsPCIAddress(address) {
			return
		}
		if _, err := os.Lstat(filepath.Join(dir, "device/physfn")); err == nil {
			return
		}
		if !slices.ContainsFunc(list, func(f function) bool { return f.address == address }) {
			list = append(list, function{address, p, netdev})
		}
	}
	for _, i := range interfaces {
		var first port
		if len(i.ports) > 0 {
			first = i.ports[0]
		}
		add(filepath.Join(sysfs, "class/net", i.name), first, i.name)
	}
	class := filepath.Join(sysfs, "class/infiniband")
	devices, err := os.ReadDir(class)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list HCAs: %w", err)
	}
	for _, d := range devices {
		if chosen(d.Name()) {
			add(filepath.Join(class, d.Name()), port{d.Name(), 1}, "")
		}
	}
	return list, nil
}
