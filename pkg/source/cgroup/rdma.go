// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// rdmaMount returns the mount with the files of the rdma controller: the followed tree on v2 if the controller is
// enabled below its root, or the controller's own v1 hierarchy, or "".
func (s *Source) rdmaMount() string {
	h := s.hierarchy
	if h.Controller == "" {
		if hasWord(filepath.Join(h.Mount, "cgroup.subtree_control"), "rdma") {
			return h.Mount
		}
		return ""
	}
	if dir := filepath.Join(s.opt.Root, "rdma"); isV1(dir) {
		return dir
	}
	return ""
}

// rdmaBuffer is the size of the buffer for rdma.current: a line of up to 100 bytes per HCA.
const rdmaBuffer = 64 << 10

// readRDMA adds the facts of the function readRDMA, with the buffer of the source.
func (s *Source) readRDMA(ctx context.Context, out *model.Snapshot, dirs map[model.CgroupID]string) {
	s.rdmaMu.Lock()
	defer s.rdmaMu.Unlock()
	if s.rdma == nil && len(dirs) > 0 {
		s.rdma = make([]byte, rdmaBuffer)
	}
	var skipped boundedfile.SkippedFiles
	out.RDMACgroups = readRDMA(ctx, dirs, s.rdma, skipped.In("rdma.current"))
	s.skipped.Count(skipped)
	for file, lines := range s.skipped.All() {
		out.SkippedLines = append(out.SkippedLines, model.SkippedLines{File: file, Count: lines})
	}
}

// readRDMA reads rdma.current in directories by cgroup id, with a buffer. The file is missing if the controller is not
// enabled.
func readRDMA(ctx context.Context, dirs map[model.CgroupID]string, buf []byte, skipped *boundedfile.Skipped) []model.RDMACgroup {
	out := []model.RDMACgroup{}
	for _, id := range slices.Sorted(maps.Keys(dirs)) {
		if ctx.Err() != nil {
			break
		}
		b, err := boundedfile.ReadOnce(filepath.Join(dirs[id], "rdma.current"), buf)
		if err != nil {
			continue
		}
		out = parseRDMA(out, id, b, skipped)
	}
	return out
}

// parseRDMA parses lines of DEVICE hca_handle=N hca_object=N and appends to out. Newer kernels may add fields. The name
// of a device may have spaces. The kernel lists every device for every cgroup, so lines without a charge are left out.
//
// cgroup2.Manager.StatFiltered of containerd/cgroups (v3.1.3) drops a line with another field, reports an unparsable
// value as 0, and also reads rdma.max for each cgroup (BenchmarkRDMA).
func parseRDMA(out []model.RDMACgroup, id model.CgroupID, text []byte, skipped *boundedfile.Skipped) []model.RDMACgroup {
	for line := range bytes.Lines(text) {
		c, known := model.RDMACgroup{Cgroup: id}, 0
		device, fields := splitFields(bytes.TrimRight(line, " \n"))
		for field := range bytes.FieldsSeq(fields) {
			key, value, _ := bytes.Cut(field, []byte("="))
			n, err := strconv.ParseUint(string(value), 10, 64)
			switch {
			case err != nil:
			case string(key) == "hca_handle":
				c.Handles = n
				known++
			case string(key) == "hca_object":
				c.Objects = n
				known++
			}
		}
		if known != 2 {
			skipped.Add(line)
			continue
		}
		if c.Handles > 0 || c.Objects > 0 {
			c.Device = clean(string(device), maxLabel)
			out = append(out, c)
		}
	}
	return out
}

// splitFields splits a line into the name of the device and the fields KEY=NUMBER.
func splitFields(line []byte) (device, fields []byte) {
	end := len(line)
	for {
		space := bytes.LastIndexByte(line[:end], ' ')
		if space <= 0 || !isCharge(line[space:end]) {
			return line[:end], line[end:]
		}
		end = space
	}
}

func isCharge(field []byte) bool {
	_, value, ok := bytes.Cut(field, []byte("="))
	return ok && (string(value) == "max" || len(value) > 0 && len(bytes.Trim(value, "0123456789")) == 0)
}
