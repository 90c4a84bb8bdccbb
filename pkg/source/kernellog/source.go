// SPDX-License-Identifier: Apache-2.0

// Package kernellog reads the errors of GPUs and HCAs that their drivers write to the kernel log, and finds the cgroups
// of the processes that caused them.
//
// It reads /dev/kmsg in the background: first the records from before the start, which fill the history and the times
// of the last faults but are not counted, then each record when it is logged. It needs no driver and no library: it
// works while NVML is closed or hangs.
//
// Everyone who may open /dev/kmsg can write to it, and a process chooses its name, which drivers log. So only records
// of the kernel itself are read (facility 0), a text is compared from its beginning, an address comes from dev_printk
// or before any name, and a code is a number or comes from a table. A fault that cannot be attributed with certainty is
// unattributed.
package kernellog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source.
type Options struct {
	Path   string // default /dev/kmsg
	Procfs string // of the host's PID namespace; default /proc
	// CgroupOf returns the cgroup of a process (model.CgroupResolver), and LastCgroupOf the remembered cgroup of an
	// ended process. Without them the faults of processes are unattributed.
	CgroupOf     func(pid int) (model.CgroupID, error)
	LastCgroupOf func(pid int) (model.CgroupID, bool)
	Logger       *zap.Logger

	rate int                                       // records per second; default maxRate. Only tests set this and read
	read func(fd int, b []byte) (n int, err error) // default unix.Read
}

// Source reads the kernel log. Its methods may be called concurrently.
type Source struct {
	o       Options
	file    *os.File
	conn    syscall.RawConn
	caught  chan struct{} // closed when the records from before the start are read
	closing chan struct{}
	done    chan struct{} // closed when run has returned
	once    sync.Once
	foreign error

	mu          sync.Mutex // protects the fields below
	ledger      ledger
	processes   processes
	next        uint64 // expected sequence number
	overwritten uint64 // records that were overwritten before they were read
	err         error  // why reading has ended
}

// New opens the kernel log and starts to read it. It returns model.ErrAbsent if the log is missing, and
// model.ErrUnsupported if it may not be read.
func New(o Options) (*Source, error) {
	o.Path, o.Procfs = cmp.Or(o.Path, "/dev/kmsg"), cmp.Or(o.Procfs, "/proc")
	o.Logger, o.rate = cmp.Or(o.Logger, zap.NewNop()), cmp.Or(o.rate, maxRate)
	if o.read == nil {
		o.read = unix.Read
	}
	file, err := os.OpenFile(o.Path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.Join(err, model.ErrAbsent)
	case errors.Is(err, fs.ErrPermission):
		return nil, errors.Join(fmt.Errorf("kernel log: %w", err), model.ErrUnsupported)
	case err != nil:
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kernel log: %w", err), file.Close())
	}
	s := &Source{
		o: o, file: file, conn: conn,
		caught: make(chan struct{}), closing: make(chan struct{}), done: make(chan struct{}),
		ledger:    newLedger(),
		processes: processes{procfs: o.Procfs, cgroupOf: o.CgroupOf, lastCgroupOf: o.LastCgroupOf},
	}
	if s.foreign = s.processes.check(); s.foreign != nil {
		s.processes = processes{procfs: o.Procfs}
	}
	go safely.Do("kernellog", s.run)
	return s, nil
}

// Name returns "kernellog".
func (s *Source) Name() string { return "kernellog" }

// Close ends the reading.
func (s *Source) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closing)
		err = s.file.Close()
	})
	<-s.done
	return err
}

// Read returns the faults. The first call waits until the records from before the start are read.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	select {
	case <-s.caught:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.settleBefore(time.Now().Add(-awaitProcess))
	out := s.ledger.snapshot()
	out.Losses = []model.Loss{
		{Reason: "kernel_log_overwritten", Count: s.overwritten},
		{Reason: "kernel_log_faults_full", Count: s.ledger.lost},
	}
	return out, errors.Join(s.err, s.foreign)
}

// FirstFault returns the device for which a driver first logged one of the codes since a time: see model.FaultLog.
func (s *Source) FirstFault(driver model.FaultDriver, codes []string, since time.Time) (pciAddress string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.first(driver, codes, since)
}

// Nonfatal reports whether a device had a fault with a code since a time, and the driver always said that it is not
// fatal: see model.FaultLog.
func (s *Source) Nonfatal(driver model.FaultDriver, pciAddress, code string, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.nonfatal(driver, pciAddress, code, since)
}

// Forget drops cgroups that ended. Their faults stay in the totals of devices.
func (s *Source) Forget(cgroups []model.CgroupID) {
	ended := make(map[model.CgroupID]bool, len(cgroups))
	for _, id := range cgroups {
		ended[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.forget(ended)
	s.processes.forget(ended)
}

func (s *Source) handle(r *record, c clock, earlier bool) {
	l, ok := parse(r)
	if !ok {
		return
	}
	at := c.wall
	if earlier {
		at = at.Add(-c.age(r))
	}
	switch l.kind {
	case uuid:
		if d := s.ledger.device(l.key.PCIAddress); d != nil {
			d.uuid = l.uuid
		}
	case culprit:
		if f := s.ledger.blame(l.key.PCIAddress, at); f != nil {
			s.attribute(f, &l, c.bounds(r, earlier), c.wall)
			s.ledger.settle(s.ledger.devices[l.key.PCIAddress])
		}
	default:
		f := model.Fault{FaultKey: l.key, Time: at, Earlier: earlier, Recovered: l.kind == recovery, Text: r.text}
		s.attribute(&f, &l, c.bounds(r, earlier), c.wall)
		s.ledger.add(f, &l)
	}
}

// attribute adds the process to a fault, and its cgroup if the process itself has caused the fault.
func (s *Source) attribute(f *model.Fault, l *line, logged bounds, now time.Time) {
	if f.PID, f.Process = l.pid, l.process; l.pid > 0 && !l.proxy {
		f.Cgroup = s.processes.find(l.pid, logged, now)
	}
}
