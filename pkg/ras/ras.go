// SPDX-License-Identifier: Apache-2.0

// Package ras asks NCCL's RAS in a process of this node. The query may end the process: crashes are known (NVIDIA/nccl#1669, #1718, #1762,
// #2346). Only a person may ask.
package ras

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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	maxAnswer = 4 << 20 // bytes
	maxLine   = 64 << 10
	listens   = 10 // TCP_LISTEN, include/net/tcp_states.h
)

// Ask prints the answer of RAS in one of the processes, which listens at a port on the address of NCCL_RAS_ADDR. Only the first process of
// a network namespace has a RAS that listens. Ask connects to no socket of another process: in the network namespace of the node several
// jobs use the port. Unprintable characters of the answer become ?.
func Ask(ctx context.Context, procfs string, port uint16, pids []int, out io.Writer) error {
	var problems []error
	for _, pid := range pids {
		conn, err := connect(ctx, filepath.Join(procfs, strconv.Itoa(pid)), port)
		if err != nil {
			problems = append(problems, fmt.Errorf("process %d: %w", pid, err))
			continue
		}
		defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
		buffered := bufio.NewWriter(out)
		fmt.Fprintf(buffered, "process %d at %s:\n", pid, conn.RemoteAddr())
		return errors.Join(talk(conn, buffered), buffered.Flush(), conn.Close())
	}
	return errors.Join(problems...)
}

// connect connects to RAS of a process in its network namespace.
func connect(ctx context.Context, dir string, port uint16) (conn net.Conn, err error) {
	namespace, err := os.Open(filepath.Join(dir, "ns/net"))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	held, err := sockets(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, err
	}
	err = safely.InNetwork("ras", int(namespace.Fd()), func() error {
		addr, err := listener(port, held)
		if err != nil {
			return err
		}
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		return err
	})
	return conn, err
}

// sockets returns the inodes of the sockets in /proc/PID/fd.
func sockets(dir string) (inodes []uint64, err error) {
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

// listener returns the address of a socket that listens at a port in the network namespace of this thread, and is one of these sockets.
func listener(port uint16, held []uint64) (addr netip.AddrPort, err error) {
	four, err := netlink.SocketDiagTCP(unix.AF_INET)
	if err != nil {
		return addr, fmt.Errorf("sockets of the network namespace: %w", err)
	}
	six, err := netlink.SocketDiagTCP(unix.AF_INET6)
	if err != nil { // as without IPv6
		err = fmt.Errorf("sockets of IPv6: %w", err)
	}
	for _, s := range slices.Concat(four, six) {
		if s.State != listens || s.ID.SourcePort != port || !slices.Contains(held, uint64(s.INode)) {
			continue
		}
		ip, _ := netip.AddrFromSlice(s.ID.Source)
		switch ip = ip.Unmap(); {
		case ip.IsUnspecified() && s.Family == unix.AF_INET6:
			ip = netip.IPv6Loopback()
		case ip.IsUnspecified():
			ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return netip.AddrPortFrom(ip, port), nil
	}
	return addr, errors.Join(
		fmt.Errorf("no RAS listens at port %d (NCCL_RAS_ENABLE, NCCL_RAS_ADDR, or another process has the port)", port), err,
	)
}

// talk speaks version 2 of the protocol of RAS's clients (src/ras/client.cc of NCCL 2.30.7), and prints the answer.
func talk(conn io.ReadWriter, out io.Writer) error {
	limited := &io.LimitedReader{R: conn, N: maxAnswer}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
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
		if _, err := fmt.Fprintln(out, format.Line(lines.Text())); err != nil {
			return err
		}
	}
	switch {
	case lines.Err() != nil:
		return fmt.Errorf("the answer is incomplete: %w", lines.Err())
	case !answered:
		return errors.New("RAS ended the connection")
	case limited.N == 0:
		return fmt.Errorf("the answer is incomplete: more than %d MiB", maxAnswer>>20)
	}
	return nil
}
