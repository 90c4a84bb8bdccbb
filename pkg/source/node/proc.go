// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// userHZ is the unit of the times in /proc/stat: hundredths of a second on all architectures of Linux.
const userHZ = 100

// idleMode is the column of a CPU's idle time.
const idleMode = 3

// hotplugged is the decrease of the idle time in seconds from which a CPU counts as new.
const hotplugged = 3

type procReader struct {
	reader
	dir    string
	lib    procfs.FS
	clocks map[string]*cpuClock // by CPU
}

// readLoad reads /proc/loadavg.
func (p *procReader) readLoad(_ time.Time, n *reading) error {
	load, err := p.lib.LoadAvg()
	if err != nil {
		return fmt.Errorf("loadavg: %w", err)
	}
	n.Load = &model.Load{One: load.Load1, Five: load.Load5, Fifteen: load.Load15}
	return nil
}

// readStat reads /proc/stat.
func (p *procReader) readStat(_ time.Time, n *reading) error {
	b, err := p.file(p.dir + "/stat")
	if err != nil {
		return err
	}
	skipped := n.skipped.In("stat")
	stat, cpus := parseStat(b, skipped)
	if err := unparsed("stat", len(cpus), skipped); err != nil && stat == (model.Stat{}) {
		return err
	}
	n.Stat, n.CPUs = &stat, cpus
	clocks := make(map[string]*cpuClock, len(cpus))
	for i := range cpus {
		c := &cpus[i]
		clock := p.clocks[c.ID]
		if clock == nil || clock.raw[idleMode]-c.Seconds[idleMode] >= hotplugged {
			clock = &cpuClock{}
		}
		clock.next(&c.Seconds)
		clocks[c.ID] = clock
	}
	p.clocks = clocks
	return nil
}

// parseStat parses /proc/stat. Lines with other names are not an error.
func parseStat(b []byte, skipped *boundedfile.Skipped) (model.Stat, []model.CPU) {
	stat, cpus := model.Stat{}, []model.CPU{}
	for len(b) > 0 {
		var line []byte
		line, b = cutLine(b)
		key, values := cutField(line)
		var to *model.Optional
		switch string(key) {
		case "intr":
			to = &stat.Interrupts
		case "ctxt":
			to = &stat.ContextSwitches
		case "processes":
			to = &stat.Forks
		case "btime":
			to = &stat.BootTime
		case "procs_running":
			to = &stat.Running
		case "procs_blocked":
			to = &stat.Blocked
		default:
			id, ok := bytes.CutPrefix(key, []byte("cpu"))
			if !ok {
				continue
			}
			var ticks [model.CPUModes]uint64
			if count, ok := parseUints(values, ticks[:]); !ok || count == 0 {
				skipped.Add(line)
				continue
			}
			c := model.CPU{ID: string(id)}
			for i, t := range ticks {
				c.Seconds[i] = float64(t) / userHZ
			}
			cpus = append(cpus, c)
			continue
		}
		field, _ := cutField(values)
		v, ok := parseUint(field)
		if !ok {
			skipped.Add(line)
			continue
		}
		*to = model.Some(float64(v))
	}
	return stat, cpus
}

// readMemory reads /proc/meminfo.
func (p *procReader) readMemory(_ time.Time, n *reading) error {
	b, err := p.file(p.dir + "/meminfo")
	if err != nil {
		return err
	}
	skipped := n.skipped.In("meminfo")
	figures := parseMemory(b, skipped)
	if err := unparsed("meminfo", len(figures), skipped); err != nil {
		return err
	}
	n.Memory = figures
	return nil
}

// parseMemory names the lines as node_exporter does: Active(file) is Active_file, and the name of a value with a unit,
// which is always kB, ends in _bytes.
func parseMemory(b []byte, skipped *boundedfile.Skipped) []model.Figure {
	figures := make([]model.Figure, 0, 64)
	for len(b) > 0 && len(figures) < maxFigures {
		var line []byte
		line, b = cutLine(b)
		key, rest := cutField(line)
		if len(key) == 0 {
			continue
		}
		field, unit := cutField(rest)
		v, ok := parseFloat(field)
		if !ok {
			skipped.Add(line)
			continue
		}
		name := string(bytes.TrimSuffix(key, []byte(":")))
		if before, inner, ok := bytes.Cut([]byte(name), []byte("(")); ok {
			name = string(before) + "_" + string(bytes.TrimSuffix(inner, []byte(")")))
		}
		if len(bytes.TrimSpace(unit)) > 0 {
			name, v = name+"_bytes", v*1024
		}
		figures = append(figures, model.Figure{Name: name, Value: v})
	}
	return figures
}

const maxFigures = 1024

// readFiles reads /proc/sys/fs/file-nr.
func (p *procReader) readFiles(_ time.Time, n *reading) error {
	b, err := p.file(p.dir + "/sys/fs/file-nr")
	if err != nil {
		return err
	}
	var v [3]uint64 // allocated, 0, maximum
	if count, ok := parseUints(bytes.TrimSpace(b), v[:]); !ok || count < len(v) {
		return fmt.Errorf("file-nr: %w: %.80q", errMalformed, b)
	}
	n.Files = &model.Files{Allocated: float64(v[0]), Maximum: float64(v[2])}
	return nil
}

// readEntropy reads two files of /proc/sys/kernel/random.
func (p *procReader) readEntropy(_ time.Time, n *reading) error {
	available, err := number(p.dir + "/sys/kernel/random/entropy_avail")
	if err != nil {
		return err
	}
	size, err := number(p.dir + "/sys/kernel/random/poolsize")
	if err != nil {
		return err
	}
	n.Entropy = &model.Entropy{Available: available, PoolSize: size}
	return nil
}
