// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/safely"
)

// daemon is a process that is stopped before the driver is unloaded.
type daemon struct {
	name    string
	pidFile string // below /run
	comm    string // at most 15 bytes of the name

	process *process
	ended   bool // was stopped, and does not run now
}

// daemons watches nvidia-persistenced, which is stopped before the driver is unloaded and removes its PID file then. A
// crash leaves the file. The end of the fabric manager is not a signal: it also ends by itself, and for a change of its
// configuration. The daemons of a driver container have their PID files in the container; there the ready file is the
// signal.
type daemons struct {
	o    Options
	all  []*daemon
	none bool // procfs is of another PID namespace
}

func newDaemons(o Options) *daemons {
	d := &daemons{o: o, all: []*daemon{
		{name: "nvidia-persistenced", pidFile: "nvidia-persistenced/nvidia-persistenced.pid", comm: "nvidia-persiste"},
	}}
	// PID files have numbers of the node's PID namespace.
	if self, err := os.Readlink(filepath.Join(o.Procfs, "self")); err != nil || self != strconv.Itoa(os.Getpid()) {
		d.none = true
		o.Logger.Debug("the end of nvidia-persistenced is not seen: procfs is of another PID namespace")
	}
	return d
}

// signals returns a signal for each daemon that was stopped and has not been started again. notify is called when a
// process ends.
func (d *daemons) signals(notify func()) []signal {
	if d.none {
		return nil
	}
	var signals []signal
	for _, one := range d.all {
		if one.process != nil && one.process.over() {
			one.process.close()
			one.process, one.ended = nil, !d.leftPIDFile(one)
		}
		if one.process == nil {
			if one.process = d.find(one, notify); one.process != nil {
				one.ended = false
			}
		}
		if one.ended {
			signals = append(signals, signal{one.name, one.name + " was stopped"})
		}
	}
	return signals
}

// leftPIDFile reports whether the daemon ended without removing its PID file.
func (d *daemons) leftPIDFile(one *daemon) bool {
	_, err := os.Lstat(filepath.Join(d.o.Run, one.pidFile))
	if err == nil {
		d.o.Logger.Warn("a daemon of the driver has crashed", zap.String("name", one.name))
	}
	return err == nil
}

// find returns the process of a PID file, or nil.
func (d *daemons) find(one *daemon, notify func()) *process {
	text, err := boundedfile.ReadOnce(filepath.Join(d.o.Run, one.pidFile), make([]byte, 32))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return nil
	}
	p, err := openProcess(pid, notify)
	if err != nil {
		return nil // the PID file is stale
	}
	// The name is read after the process was opened: a new process may have the number of an ended process.
	comm, err := boundedfile.ReadOnce(filepath.Join(d.o.Procfs, strconv.Itoa(pid), "comm"), make([]byte, 32))
	if err != nil || strings.TrimSpace(string(comm)) != one.comm {
		p.close()
		return nil
	}
	d.o.Logger.Debug("watching a daemon of the driver", zap.String("name", one.name), zap.Int("pid", pid))
	return p
}

func (d *daemons) close() {
	for _, one := range d.all {
		if one.process != nil {
			one.process.close()
		}
	}
}

type process struct {
	file   *os.File
	ended  chan struct{} // closed when the process has ended or close was called
	waited chan struct{} // closed after the goroutine has ended
}

func openProcess(pid int, notify func()) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	p := &process{os.NewFile(uintptr(fd), "pidfd"), make(chan struct{}), make(chan struct{})}
	raw, err := p.file.SyscallConn()
	if err != nil {
		_ = p.file.Close()
		return nil, err
	}
	go safely.Do("nvidia", func() {
		defer close(p.waited)
		_ = raw.Read(func(fd uintptr) bool { // called at once, and then when the pidfd is readable
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 && err == nil
		})
		close(p.ended)
		notify()
	})
	return p, nil
}

func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) close() {
	_ = p.file.Close()
	<-p.waited
}
