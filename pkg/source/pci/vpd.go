// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// Tags of resources in the VPD (PCI Local Bus Specification 2.2, appendix I; drivers/pci/vpd.c).
const (
	largeResource = 0x80 // bit: two bytes of length follow
	readOnlyVPD   = 0x90 // VPD-R
	endSmall      = 0x78
	endLarge      = 0x79
)

// The limits of a VPD: its addresses have 15 bits. A UUID has 36 characters.
const (
	maxVPD  = 32 << 10
	maxUUID = 64
)

// parseUUID returns the UUID of the card in a VPD: the last keyword V3 in the read-only part, as in rdma_topo of
// rdma-core. Without a UUID the error is errNoUUID or errBadUUID if the VPD was read to its end tag, else errNoEnd. A
// length beyond the end ends the VPD.
func parseUUID(b []byte) (string, error) {
	var uuid string
	missing := errNoUUID
	for len(b) > 0 && b[0] != endSmall && b[0] != endLarge {
		tag, size, header := b[0], int(b[0]&7), 1
		if tag&largeResource != 0 {
			if len(b) < 3 {
				break
			}
			size, header = int(binary.LittleEndian.Uint16(b[1:])), 3
		}
		if size > len(b)-header {
			break
		}
		if tag == readOnlyVPD {
			if value, found := lastV3(b[header : header+size]); found {
				uuid, missing = printable(value), errBadUUID
			}
		}
		b = b[header+size:]
	}
	switch {
	case uuid != "":
		return uuid, nil
	case len(b) == 0 || b[0] != endSmall && b[0] != endLarge:
		return "", errNoEnd
	}
	return "", missing
}

// lastV3 returns the last value of V3 in a read-only part, without its padding: entries of two letters, a byte of
// length and a value. An empty value does not count.
func lastV3(b []byte) (last []byte, found bool) {
	const header = 3
	for len(b) >= header && int(b[2]) <= len(b)-header {
		end := header + int(b[2])
		if string(b[:2]) == "V3" {
			last = bytes.Trim(b[header:end], " \x00")
			found = len(last) > 0
		}
		b = b[end:]
	}
	return last, found
}

// printable returns b as text if it is printable ASCII and not too long for a UUID, else "".
func printable(b []byte) string {
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return ""
		}
	}
	if len(b) > maxUUID {
		return ""
	}
	return string(b)
}

// readVPDFor is how long a VPD is read before this counts as a failure: the kernel gives the firmware 125 ms per four
// bytes.
const readVPDFor = time.Minute

// vpdRead is the VPD of a function. It is read once, and again after a pause if the read failed. A read that hangs
// delays one round; a later round takes its result.
type vpdRead struct {
	pending *hang.Pending[result]
	vpd     model.VPD
	done    bool // the VPD was read, or the function has no VPD
	pause   hang.Backoff
}

// The reasons for a missing UUID. Errors of the kernel are reasons as well.
var (
	errNoUUID    = errors.New("its VPD has no UUID (keyword V3)")
	errBadUUID   = errors.New("the UUID in its VPD (keyword V3) cannot be printed, or is too long")
	errNoEnd     = errors.New("its VPD has no end tag: it is not valid, or was read in part")
	errNoVPD     = errors.New("it has no VPD")
	errUnread    = errors.New("its VPD is not read yet: no answer in time")
	errSuspended = errors.New("its VPD is not read: it is suspended")
)

// readVPDs sets VPD of the functions that pair a Data Direct function with its HCA, if the node has one that the kernel may use.
func (s *Source) readVPDs(ctx context.Context, found []model.PCIFunction) {
	known, reads := map[device]*vpdRead{}, make([]*vpdRead, len(found))
	direct := func(f model.PCIFunction) bool { return f.IsDataDirect() && f.Driver == model.DataDirectDriver }
	if slices.ContainsFunc(found, direct) {
		for i := range found {
			if f := &found[i]; direct(*f) || f.Driver == "mlx5_core" {
				key := device{f.Address, inode(s.path(f.Address, ""))}
				reads[i] = cmp.Or(s.vpds[key], &vpdRead{})
				known[key] = reads[i]
				s.startVPD(ctx, key, reads[i])
			}
		}
	}
	s.vpds = known
	for i, r := range reads {
		if r != nil {
			r.end(ctx)
			found[i].VPD = r.vpd
		}
	}
}

func (s *Source) startVPD(ctx context.Context, key device, r *vpdRead) {
	switch {
	case r.done || r.pending != nil || r.pause.Waiting(time.Now()):
		return
	case s.suspended(key.address):
		r.vpd.Missing = errSuspended.Error()
		return
	}
	r.vpd.Missing = errUnread.Error()
	file, until := s.path(key.address, "vpd"), time.Now().Add(readVPDFor)
	r.pending = s.calls.Start(ctx, key, s.wait, func() (result, error) { return readVPD(file, until) })
}

func (r *vpdRead) end(ctx context.Context) {
	if r.pending == nil {
		return
	}
	_, _ = r.pending.Wait(ctx)
	if !r.pending.Returned() {
		return
	}
	read, err := r.pending.Wait(ctx) // it may have returned when the time was up
	r.pending = nil
	if err != nil {
		r.vpd.Missing = err.Error()
		r.done = errors.Is(err, errNoVPD) || errors.Is(err, errNoUUID) || errors.Is(err, errBadUUID)
		r.pause.Failed(time.Now())
		return
	}
	r.vpd, r.done = model.VPD{UUID: read.uuid}, true
}

// readVPD reads the file vpd of a function. The kernel asks the firmware for four bytes at a time, so each read is
// short, and no read begins after the time is up.
func readVPD(file string, until time.Time) (result, error) {
	fd, err := boundedfile.Open(unix.AT_FDCWD, file, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return result{}, errNoVPD
	case err != nil:
		return result{}, fmt.Errorf("opening its VPD: %w", err)
	}
	defer unix.Close(fd)
	const part = 256
	b := make([]byte, 0, part)
	for len(b) < maxVPD {
		if !time.Now().Before(until) {
			return result{}, errUnread
		}
		b = slices.Grow(b, part)
		n, err := boundedfile.Read(fd, b[len(b):len(b)+part])
		if err != nil {
			return result{}, fmt.Errorf("reading its VPD: %w", err)
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	uuid, err := parseUUID(b)
	return result{uuid: uuid}, err
}

// inode returns the inode of a directory, or 0 if it is gone.
func inode(dir string) uint64 {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return 0
	}
	return st.Ino
}
