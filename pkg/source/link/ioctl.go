// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/netlink"
)

// This file has the requests by ioctl (include/uapi/linux/ethtool.h): `ethtool -S` has no other form.

// Numbers and sizes of ethtool.h.
const (
	ethtoolGStrings  = 0x1b // ETHTOOL_GSTRINGS: u32 cmd, string_set, len; names
	ethtoolGStats    = 0x1d // ETHTOOL_GSTATS: u32 cmd, n_stats; u64 values
	ethtoolGSSetInfo = 0x37 // ETHTOOL_GSSET_INFO: u32 cmd, reserved; u64 mask; u32 counts
	setStatistics    = 1    // ETH_SS_STATS
	sizeName         = 32   // ETH_GSTRING_LEN
	namesAt          = 12   // of the names in the buffer
	valuesAt         = 8    // of the values in the buffer
)

// maxStatistics is more than any driver has: mlx5 has about 60 per channel.
const maxStatistics = 1 << 16

// ioctlSocket makes ioctls. If a driver adds statistics between two ioctls, the kernel writes more than the first
// announced. So the buffer is a separate mapping, much larger than needed, followed by a read-only page: the kernel
// then returns EFAULT, and does not overwrite the memory of the sensor. Unused pages take no memory.
type ioctlSocket struct {
	fd     int
	buf    []byte
	mapped []byte // buf and the page behind it
}

func openIoctl() (*ioctlSocket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) { // without IPv4
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("socket for ioctl: %w", err)
	}
	const size = namesAt + maxStatistics*sizeName
	page := unix.Getpagesize()
	length := (size+page-1)/page*page + page
	mapped, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		err = unix.Mprotect(mapped[length-page:], unix.PROT_NONE)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("buffer for ioctl: %w", err)
	}
	return &ioctlSocket{fd: fd, buf: mapped[:length-page], mapped: mapped}, nil
}

func (s *ioctlSocket) close() {
	_ = unix.Close(s.fd)
	_ = unix.Munmap(s.mapped)
}

// ifreq is struct ifreq: the name of an interface, and a union.
type ifreq struct {
	name  [unix.IFNAMSIZ]byte
	union [24]byte
}

func (s *ioctlSocket) call(request uintptr, r *ifreq) error {
	for {
		//nolint:gosec // the kernel reads and writes no more than struct ifreq
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), request, uintptr(unsafe.Pointer(r)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

func request(name string) (r ifreq, err error) {
	if len(name) >= len(r.name) {
		return r, unix.ENODEV
	}
	copy(r.name[:], name)
	return r, nil
}

func (s *ioctlSocket) ethtool(name string) error {
	r, err := request(name)
	if err != nil {
		return err
	}
	//nolint:gosec // the buffer is no memory of Go and stays mapped while s is used
	native.PutUint64(r.union[:], uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.buf)))))
	return s.call(unix.SIOCETHTOOL, &r)
}

// identify returns the index and the hardware address. The kernel returns at most 14 bytes of the address.
func (s *ioctlSocket) identify(name string) (index int, address []byte, err error) {
	r, err := request(name)
	if err == nil {
		err = s.call(unix.SIOCGIFINDEX, &r)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("SIOCGIFINDEX: %w", err)
	}
	index = int(native.Uint32(r.union[:]))
	r.union = [24]byte{}
	if err := s.call(unix.SIOCGIFHWADDR, &r); err != nil {
		return 0, nil, fmt.Errorf("SIOCGIFHWADDR: %w", err)
	}
	return index, r.union[2:16], nil // struct sockaddr: family, address
}

func (s *ioctlSocket) count(name string) (int, error) {
	clear(s.buf[:24])
	native.PutUint32(s.buf, ethtoolGSSetInfo)
	native.PutUint64(s.buf[8:], 1<<setStatistics)
	if err := s.ethtool(name); err != nil {
		return 0, fmt.Errorf("ETHTOOL_GSSET_INFO: %w", err)
	}
	if native.Uint64(s.buf[8:]) == 0 {
		return 0, fmt.Errorf("ETHTOOL_GSSET_INFO: %w", unix.EOPNOTSUPP)
	}
	n := native.Uint32(s.buf[16:])
	if n > maxStatistics {
		return 0, fmt.Errorf("ETHTOOL_GSSET_INFO: %d statistics: %w", n, netlink.ErrMalformed)
	}
	return int(n), nil
}

// names returns the names of the statistics, 32 bytes each.
func (s *ioctlSocket) names(name string) ([]byte, error) {
	if _, err := s.count(name); err != nil {
		return nil, err
	}
	clear(s.buf[:namesAt])
	native.PutUint32(s.buf, ethtoolGStrings)
	native.PutUint32(s.buf[4:], setStatistics)
	if err := s.ethtool(name); err != nil {
		return nil, fmt.Errorf("ETHTOOL_GSTRINGS: %w", err)
	}
	n := min(int(native.Uint32(s.buf[8:])), maxStatistics)
	return s.buf[namesAt : namesAt+n*sizeName], nil
}

// values returns the values of the statistics, 8 bytes each.
func (s *ioctlSocket) values(name string) ([]byte, error) {
	n, err := s.count(name)
	if err != nil {
		return nil, err
	}
	clear(s.buf[:valuesAt])
	native.PutUint32(s.buf, ethtoolGStats)
	native.PutUint32(s.buf[4:], uint32(n))
	if err := s.ethtool(name); err != nil {
		return nil, fmt.Errorf("ETHTOOL_GSTATS: %w", err)
	}
	n = min(int(native.Uint32(s.buf[4:])), maxStatistics)
	return s.buf[valuesAt : valuesAt+n*8], nil
}
