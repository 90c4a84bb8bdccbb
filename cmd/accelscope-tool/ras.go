// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	maxRAS     = 4 << 20 // bytes of an answer
	maxRASLine = 64 << 10
	listens    = 0x0A // TCP_LISTEN, include/net/tcp_states.h
)

// A rasListener is the socket on which RAS of a process listens, in the network namespace of the process.
type rasListener struct {
	pid  int
	addr netip.AddrPort
}

// askRAS prints the answer of RAS in one of the processes. Only the first process of a network namespace listens. It connects to no socket
// of another process: in the network namespace of the node several jobs use the port.
func askRAS(ctx context.Context, c *config.RASCommand, pids []int, stdout io.Writer) error {
	l, err := findListener(c, pids)
	if err != nil {
		return err
	}
	conn, err := l.dial(ctx, c.Procfs)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	out := bufio.NewWriter(stdout)
	fmt.Fprintf(out, "process %d at %s:\n", l.pid, l.addr)
	return errors.Join(talk(conn, out), out.Flush())
}

func findListener(c *config.RASCommand, pids []int) (rasListener, error) {
	var problems []error
	for _, pid := range pids {
		addr, err := listenerOf(filepath.Join(c.Procfs, strconv.Itoa(pid)), c.Port)
		if err == nil {
			return rasListener{pid, addr}, nil
		}
		problems = append(problems, fmt.Errorf("process %d: %w", pid, err))
	}
	return rasListener{}, errors.Join(problems...)
}

// listenerOf returns the address on which a process listens at a port: a socket in net/tcp or net/tcp6 of its network namespace that is
// one of its file descriptors.
func listenerOf(dir string, port uint16) (addr netip.AddrPort, err error) {
	fs, err := procfs.NewFS(dir)
	if err != nil {
		return addr, err
	}
	four, err := fs.NetTCP()
	six, err6 := fs.NetTCP6()
	if err = errors.Join(err, err6); err != nil && !errors.Is(err, os.ErrNotExist) { // no IPv6
		return addr, err
	}
	held, err := sockets(dir)
	if err != nil {
		return addr, err
	}
	for _, s := range slices.Concat(four, six) {
		if s.St != listens || s.LocalPort != uint64(port) || !slices.Contains(held, s.Inode) {
			continue
		}
		ip, ok := netip.AddrFromSlice(s.LocalAddr)
		if !ok {
			continue
		}
		switch {
		case ip.IsUnspecified() && ip.Is4():
			ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		case ip.IsUnspecified():
			ip = netip.IPv6Loopback()
		}
		return netip.AddrPortFrom(ip, port), nil
	}
	return addr, fmt.Errorf("no RAS listens at port %d (NCCL_RAS_ENABLE, NCCL_RAS_ADDR, another process has the port)", port)
}

// sockets returns the inodes of the sockets of a process.
func sockets(dir string) (inodes []uint64, err error) {
	dir = filepath.Join(dir, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed
		}
		if name, ok := strings.CutPrefix(target, "socket:["); ok {
			if n, err := strconv.ParseUint(strings.TrimSuffix(name, "]"), 10, 64); err == nil {
				inodes = append(inodes, n)
			}
		}
	}
	return inodes, nil
}

// dial connects in the network namespace of the process.
func (l rasListener) dial(ctx context.Context, dir string) (conn net.Conn, err error) {
	namespace, err := os.Open(filepath.Join(dir, strconv.Itoa(l.pid), "ns/net"))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	done := make(chan struct{})
	safely.OnOwnThread("ras", func() {
		defer close(done)
		if err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("setns: %w (CAP_SYS_ADMIN)", err)
			return
		}
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", l.addr.String())
	})
	<-done
	return conn, err
}

// talk speaks version 2 of the protocol of RAS's clients (src/ras/client.cc of NCCL 2.30.7), and prints the answer.
func talk(conn io.ReadWriter, stdout io.Writer) error {
	limited := &io.LimitedReader{R: conn, N: maxRAS}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxRASLine)
	for _, step := range []struct{ ask, want string }{{"CLIENT PROTOCOL 2", "SERVER PROTOCOL "}, {"TIMEOUT 5", "OK"}} {
		if _, err := fmt.Fprintln(conn, step.ask); err != nil {
			return err
		}
		if !lines.Scan() {
			return errors.Join(errors.New("RAS ended the connection"), lines.Err())
		}
		if !strings.HasPrefix(lines.Text(), step.want) {
			return fmt.Errorf("this is not RAS: it answers %q", format.Line(lines.Text()))
		}
	}
	if _, err := fmt.Fprintln(conn, "VERBOSE STATUS"); err != nil {
		return err
	}
	answered := false
	for lines.Scan() {
		answered = true
		if _, err := fmt.Fprintln(stdout, format.Line(lines.Text())); err != nil {
			return err
		}
	}
	switch {
	case lines.Err() != nil:
		return fmt.Errorf("the answer is incomplete: %w", lines.Err())
	case !answered:
		return errors.New("RAS ended the connection")
	case limited.N == 0:
		return fmt.Errorf("the answer is incomplete: more than %d MiB", maxRAS>>20)
	}
	return nil
}
