// SPDX-License-Identifier: Apache-2.0

// Package hotplug listens to what the kernel announces about devices, modules and network interfaces, for all sources:
// uevents (lib/kobject_uevent.c), and messages of rtnetlink about interfaces. Both need no privilege.
//
// An announcement says what to look at; subscribers read sysfs after it. So announcements are not queued: several make
// one look, and after lost announcements (ENOBUFS) all subscribers look. Every subscriber also looks once a minute.
//
// HCAs and network interfaces are announced in their own network namespace only. In another network namespace than the
// node's, with a copy of sysfs, and when a socket fails, subscribers look as often as without announcements.
package hotplug

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/procfile"
	"github.com/accelscope/accelscope/pkg/safely"
)

// maxMessage is more than a uevent: the kernel's UEVENT_BUFFER_SIZE, and the path before it. A longer message of
// rtnetlink is cut off after the number of the interface.
const maxMessage = 8 << 10

// Watcher receives the announcements.
type Watcher struct {
	log     *zap.Logger
	sockets []*os.File
	done    sync.WaitGroup

	mu            sync.Mutex
	subscriptions []*Subscription
	lost          uint64
	incomplete    error // why subscribers cannot rely on announcements, or nil
	closed        bool
}

// Open returns a Watcher. sysfs is what subscribers look at; procfs has the first process of the node.
func Open(sysfs, procfs string, log *zap.Logger) (*Watcher, error) {
	w := &Watcher{log: log, incomplete: cmp.Or(copied(sysfs), procfile.OtherNetwork(procfs))}
	if w.incomplete != nil {
		log.Info("devices are listed every few seconds, too", zap.Error(w.incomplete))
	}
	// Group 1 of uevents has the kernel's own messages; group 2 has udev's.
	if err := errors.Join(
		w.listen("uevents", unix.NETLINK_KOBJECT_UEVENT, 1, w.announceDevice),
		w.listen("rtnetlink", unix.NETLINK_ROUTE, unix.RTMGRP_LINK, w.announceInterface),
	); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// copied returns an error unless a directory is the kernel's sysfs.
func copied(sysfs string) error {
	if !IsSysfs(sysfs) {
		return fmt.Errorf("%s is not a sysfs", sysfs)
	}
	return nil
}

// IsSysfs distinguishes the real sysfs from a copy, which does not describe the kernel's devices and interfaces.
func IsSysfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.SYSFS_MAGIC
}

// listen passes the messages of a multicast group to announce.
func (w *Watcher) listen(name string, protocol int, groups uint32, announce func(message []byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return fmt.Errorf("%s: %w", name, os.NewSyscallError("socket", err))
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("%s: %w", name, os.NewSyscallError("bind", err))
	}
	socket := os.NewFile(uintptr(fd), name)
	w.sockets = append(w.sockets, socket)
	safely.Go(&w.done, "hotplug", func() {
		err := errors.New("panic")
		defer func() { w.fail(err) }()
		err = w.receive(socket, announce)
	})
	return nil
}

func (w *Watcher) receive(socket *os.File, announce func(message []byte)) error {
	buf := make([]byte, maxMessage)
	for {
		n, err := socket.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			w.mu.Lock()
			w.lost++
			w.mu.Unlock()
			w.announceAll()
		case err != nil:
			return err
		default:
			announce(buf[:n])
		}
	}
}

// fail records that a socket is no longer read.
func (w *Watcher) fail(err error) {
	w.mu.Lock()
	closed := w.closed
	w.incomplete = err
	w.mu.Unlock()
	if !closed {
		w.log.Warn("devices are listed every few seconds: the kernel's announcements are not received", zap.Error(err))
		w.announceAll()
	}
}

// Lost returns how often announcements were lost, because the sockets had no room.
func (w *Watcher) Lost() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Close ends the announcements.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	for _, s := range w.sockets {
		_ = s.Close()
	}
	w.done.Wait()
}
