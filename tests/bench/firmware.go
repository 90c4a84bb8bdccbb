// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// commands returns the commands that mlx5_ib sends to the firmware of an InfiniBand port when a file below ports/1 is
// read (Linux 6.12). Not measured: the table is from the source.
//
//   - counters/NAME: one PerfMgt MAD, one command (show_pma_counter, mlx5_ib_process_mad).
//   - state, phys_state, rate, lid, lid_mask_count, sm_lid, sm_sl, cap_mask: ib_query_port, five commands
//     (mlx5_query_hca_port: QUERY_HCA_VPORT_CONTEXT, PTYS, twice PMTU, PVLC).
//   - hw_counters/NAME: the kernel reads all and keeps them for lifespan; RDMA netlink's STAT_GET does the same: three
//     commands for all (mlx5_ib_get_hw_stats: Q counters, PPCNT, congestion).
//   - All other files: values that the driver has.
func commands(file string) float64 {
	dir, name := path.Split(file)
	switch {
	case dir == "counters/":
		return 1
	case dir == "" && slices.Contains([]string{"state", "phys_state", "rate", "lid", "lid_mask_count", "sm_lid", "sm_sl", "cap_mask"}, name):
		return 5
	}
	return 0
}

const statisticsCommands = 3

// readWatch reports which files of the first HCA's port are read (inotify's IN_ACCESS).
type readWatch struct {
	fd   int
	dirs map[int32]string // by watch
}

func newReadWatch(m fixtures.Manifest) (*readWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1: %w", err)
	}
	w := &readWatch{fd: fd, dirs: map[int32]string{}}
	if len(m.HCAs) == 0 {
		return w, nil
	}
	for _, dir := range []string{"", "counters/", "hw_counters/"} {
		at := filepath.Join(m.Dir, m.HCAs[0].PortDir, dir)
		id, err := unix.InotifyAddWatch(fd, at, unix.IN_ACCESS)
		if err != nil {
			w.close()
			return nil, fmt.Errorf("watching %s: %w", at, err)
		}
		w.dirs[int32(id)] = dir
	}
	return w, nil
}

func (w *readWatch) close() { _ = unix.Close(w.fd) }

// commands returns the firmware commands of all reads since the last call. Equal reads one after the other are one
// event, as a file that is read to its end.
func (w *readWatch) commands() (sum float64) {
	statistics := false
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if err != nil || n <= 0 {
			break
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			dir := w.dirs[int32(binary.NativeEndian.Uint32(b))]
			name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
			sum += commands(dir + string(name))
			statistics = statistics || strings.HasPrefix(dir, "hw_")
			b = b[size:]
		}
	}
	if statistics {
		sum += statisticsCommands
	}
	return sum
}
