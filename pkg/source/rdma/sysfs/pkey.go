// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// pkeysAge is the interval at which the P_Key table of an unchanged port is read again. The kernel reports changes
	// of the table (IB_EVENT_PKEY_CHANGE) only to programs that have a verbs context open.
	pkeysAge = time.Hour
	// maxPKeys bounds a table: the P_KeyCap of NodeInfo has 16 bits, known tables have up to 128 entries.
	maxPKeys = 1024
	// A reading ends after emptyPKeys empty entries: a subnet manager writes the table in blocks of 32.
	emptyPKeys = 32
	// pkeysLimit is the time after which the reading of a table counts as hanging.
	pkeysLimit = time.Minute
)

// pkeyTable is the P_Key table of an InfiniBand port. mlx5 runs a firmware command for each entry, so the table is read
// in the background, when the port changes, and at intervals of pkeysAge.
type pkeyTable struct {
	call    hang.Call[[]model.PKey]
	pending *hang.Pending[[]model.PKey]
	due     bool
	read    time.Time
	keys    []model.PKey // nil until the first reading has returned
}

// refresh returns the last table. It starts a reading if the port has changed or the table is old, and does not wait for it.
func (t *pkeyTable) refresh(changed bool, now time.Time, open func() (int, error)) []model.PKey {
	t.due = t.due || changed || now.Sub(t.read) >= pkeysAge
	if t.pending != nil {
		if !t.pending.Returned() {
			return t.keys
		}
		if keys, err := t.pending.Wait(context.Background()); err == nil {
			t.keys = keys
		} else {
			t.keys = nil
		}
		t.pending = nil
	}
	if !t.due {
		return t.keys
	}
	t.due, t.read = false, now
	dir, err := open()
	if err != nil {
		t.keys = nil
		return nil
	}
	t.pending = t.call.Start(pkeysLimit, func() ([]model.PKey, error) {
		defer unix.Close(dir) //nolint:errcheck // the directory was only read
		return readPKeys(dir)
	})
	return t.keys
}

// readPKeys reads pkeys/I of a port, from an open directory.
func readPKeys(dir int) ([]model.PKey, error) {
	keys, last := []model.PKey{}, -1
	buf := make([]byte, maxValue)
	for i := 0; i < maxPKeys && i-last <= emptyPKeys; i++ {
		fd, err := boundedfile.Open(dir, strconv.Itoa(i), 0)
		if errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("pkeys/%d: %w", i, err)
		}
		n, err := boundedfile.ReadStart(fd, buf)
		_ = unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("pkeys/%d: %w", i, err)
		}
		key, ok := parsePKey(ParseLine(buf[:n]))
		if !ok {
			return nil, fmt.Errorf("pkeys/%d: %w", i, errGarbage)
		}
		if key.Index = i; key.Partition != 0 {
			keys, last = append(keys, key), i
		}
	}
	return keys, nil
}

// parsePKey parses "0xffff". Bit 15 is the membership; partition 0 is an empty entry.
func parsePKey(text string) (model.PKey, bool) {
	digits, ok := strings.CutPrefix(text, "0x")
	v, err := strconv.ParseUint(digits, 16, 16)
	if !ok || err != nil || len(digits) != 4 {
		return model.PKey{}, false
	}
	return model.PKey{Partition: uint16(v & 0x7fff), Full: v&0x8000 != 0}, true
}

// refreshPKeys starts a reading of the P_Keys of an InfiniBand port if one is due.
func (d *Device) refreshPKeys(p *Port, changed bool, now time.Time) {
	if p.Base.LinkLayer != "InfiniBand" {
		return
	}
	p.Base.PKeys = p.pkeys.refresh(changed, now, func() (int, error) {
		return d.Reader.Openat(d.dir, "ports/"+strconv.Itoa(p.Base.Number)+"/pkeys", unix.O_DIRECTORY)
	})
}
