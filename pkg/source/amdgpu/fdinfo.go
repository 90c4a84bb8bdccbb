// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A client is one open of a GPU's node, as /proc/PID/fdinfo/FD tells of it: the
// keys of Documentation/gpu/drm-usage-stats.rst, which amdgpu has since 5.19, or
// those that it had before, from 5.14 on. Descriptors that were passed on, or
// inherited, are the same client.
type client struct {
	address string // PCI: drm-pdev, pdev before
	// id is unique on the GPU: drm-client-id; before, pasid, the number of its address
	// space.
	id     uint64
	memory uint64 // in its VRAM, in bytes
	// counts says that engines are known: one that is not in it was never used. The old
	// format has percentages since the beginning, of which no recent use can be had.
	counts  bool
	engines map[string]engine
}

// engine is the time that a client has used one, by its name: gfx, compute, dma,
// dec, enc, jpeg, vpe.
type engine struct {
	busy     uint64 // nanoseconds, cumulative: drm-engine-NAME
	capacity uint64 // of how many like ones: drm-engine-capacity-NAME, else 1
}

// What one client may cost. The text is the kernel's, but how much there is of it
// is for the drivers to say.
const (
	maxClientEngines = 32
	maxEngineName    = 32
	maxCapacity      = 1024
)

// parseFdinfo reads a file of fdinfo. False is for what is no client of amdgpu, or
// cannot be told from others.
func parseFdinfo(text []byte) (client, bool) {
	c := client{engines: map[string]engine{}}
	var driver string
	var pasid, before, resident, plain uint64
	var identified, isResident bool
	for line := range bytes.Lines(text) {
		k, v, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		key, value := string(bytes.TrimSpace(k)), string(bytes.TrimSpace(v))
		switch key {
		case "drm-driver":
			driver = value
		case "drm-pdev", "pdev":
			c.address = strings.ToLower(value)
		case "drm-client-id":
			c.id, identified = parseUint(value)
		case "pasid":
			pasid, _ = parseUint(value)
		case "drm-resident-vram":
			resident, isResident = parseBytes(value)
		case "drm-memory-vram":
			plain, _ = parseBytes(value)
		case "vram mem":
			before, _ = parseBytes(value)
		default:
			if name, ok := strings.CutPrefix(key, "drm-engine-"); ok {
				c.engine(name, value)
			}
		}
	}
	switch {
	case driver == "amdgpu" && identified:
		c.counts, c.memory = true, plain
		if isResident { // what newer kernels call the same
			c.memory = resident
		}
	case driver == "" && pasid != 0:
		c.id, c.memory, c.engines = pasid, before, nil
	default:
		return client{}, false
	}
	return c, addressPattern(c.address)
}

func (c *client) engine(name, value string) {
	name, isCapacity := strings.CutPrefix(name, "capacity-")
	if !engineName(name) {
		return
	}
	e, known := c.engines[name]
	if !known && len(c.engines) >= maxClientEngines {
		return
	}
	if isCapacity {
		n, ok := parseUint(value)
		if !ok || n == 0 || n > maxCapacity {
			return
		}
		e.capacity = n
	} else {
		n, ok := parseUint(strings.TrimSuffix(value, " ns"))
		if !ok || n > math.MaxInt64 { // a kernel that subtracted too much
			return
		}
		e.busy = n
	}
	c.engines[name] = e
}

func engineName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxEngineName
}

// addressPattern holds of 0000:c1:00.0.
func addressPattern(s string) bool {
	if len(s) < len("0000:00:00.0") || len(s) > len("00000000:00:00.0") {
		return false
	}
	for i := range len(s) {
		switch left := len(s) - i; left {
		case 2:
			if s[i] != '.' {
				return false
			}
		case 5, 8:
			if s[i] != ':' {
				return false
			}
		default:
			if !strings.Contains("0123456789abcdef", s[i:i+1]) {
				return false
			}
		}
	}
	return true
}

func parseUint(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// maxMemory is more than any GPU has, and few enough that no sum overflows.
const maxMemory = 1 << 48

// parseBytes reads 123 KiB, and the 123 kB of old, which are the same.
func parseBytes(s string) (uint64, bool) {
	number, unit, _ := strings.Cut(s, " ")
	n, ok := parseUint(number)
	shift := 0
	switch unit {
	case "":
	case "KiB", "kB":
		shift = 10
	case "MiB":
		shift = 20
	default:
		return 0, false
	}
	if !ok || n > maxMemory>>shift {
		return 0, false
	}
	return n << shift, true
}

// readClient reads a file of fdinfo without the locks on the file, which the kernel
// lists before the driver is asked: a process may have as many as it likes. So it
// reads line by line, which package boundedfile does not.
func readClient(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text []byte
	lines := bufio.NewScanner(io.LimitReader(f, maxFdinfo))
	for lines.Scan() && len(text) < maxAttribute {
		if line := lines.Bytes(); !bytes.HasPrefix(line, []byte("lock:")) {
			text = append(append(text, line...), '\n')
		}
	}
	return text, lines.Err()
}

const (
	drmMajor = 226
	// maxFdinfo is how much of a file is read: 15000 locks.
	maxFdinfo = 1 << 20
	// maxFiles is how many files of a process are looked at: those with low numbers.
	maxFiles = 1 << 15
)

// clientsOf gives the clients that a process has open, by the minor number of the
// node. That is the kernel's and not the name of the file, which a container may
// have chosen: docker run --device /dev/dri/renderD129:/dev/dri/renderD128.
//
// Asking what a file is does not ask who provides it (AT_STATX_DONT_SYNC): a
// file system of a container may never answer.
func clientsOf(procfs string, pid int) map[uint32][]client {
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	names, err := readNames(filepath.Join(dir, "fd"), maxFiles)
	if err != nil {
		return nil // it ended, or may not be looked at
	}
	var clients map[uint32][]client
	for _, name := range names {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, dir+"/fd/"+name, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev_major != drmMajor {
			continue
		}
		text, err := readClient(dir + "/fdinfo/" + name)
		if err != nil {
			continue
		}
		c, ok := parseFdinfo(text)
		if !ok {
			continue
		}
		if clients == nil {
			clients = map[uint32][]client{}
		}
		clients[st.Rdev_minor] = append(clients[st.Rdev_minor], c)
	}
	return clients
}
