// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// userHZ is the unit of the times in /proc/stat: hundredths of a second on all architectures of
// Linux.
const userHZ = 100

// idleMode is the column of a CPU's idle time.
const idleMode = 3

// hotplugged is the decrease of the idle time in seconds from which a CPU counts
// as a new one.
const hotplugged = 3

// procReader reads the small files of procfs.
type procReader struct {
	reader
	dir string
	lib procfs.FS
	// cpus holds the last times: the kernel may decrease idle and iowait times, but a counter must
	// not fall.
	cpus map[string]*model.CPU
}

// readLoad reads /proc/loadavg.
func (p *procReader) readLoad(_ time.Time, n *model.Node) error {
	load, err := p.lib.LoadAvg()
	if err != nil {
		return fmt.Errorf("loadavg: %w", err)
	}
	n.Load = &model.Load{One: load.Load1, Five: load.Load5, Fifteen: load.Load15}
	return nil
}

// readStat reads /proc/stat.
func (p *procReader) readStat(_ time.Time, n *model.Node) error {
	b, err := p.file(p.dir + "/stat")
	if err != nil {
		return err
	}
	stat, cpus, err := parseStat(b)
	if err != nil {
		return err
	}
	n.Stat, n.CPUs = &stat, cpus
	kept := make(map[string]*model.CPU, len(cpus))
	for i := range cpus {
		c := &cpus[i]
		if old := p.cpus[c.ID]; old != nil && old.Seconds[idleMode]-c.Seconds[idleMode] < hotplugged {
			for mode := range c.Seconds {
				c.Seconds[mode] = max(c.Seconds[mode], old.Seconds[mode])
			}
		}
		kept[c.ID] = c
	}
	p.cpus = kept
	return nil
}

// parseStat parses /proc/stat. It skips unknown lines.
func parseStat(b []byte) (model.Stat, []model.CPU, error) {
	stat, cpus := model.Stat{}, []model.CPU{}
	for len(b) > 0 {
		var line []byte
		line, b = cutLine(b)
		key, values := cutField(line)
		var to *uint64
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
			if _, ok := parseUints(values, ticks[:]); !ok {
				return stat, nil, fmt.Errorf("stat: %w: %.80q", errMalformed, line)
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
			return stat, nil, fmt.Errorf("stat: %w: %.80q", errMalformed, line)
		}
		*to = v
	}
	return stat, cpus, nil
}

// readMemory reads /proc/meminfo.
func (p *procReader) readMemory(_ time.Time, n *model.Node) error {
	b, err := p.file(p.dir + "/meminfo")
	if err != nil {
		return err
	}
	n.Memory, err = parseMemory(b)
	return err
}

// parseMemory names the lines as node_exporter does: Active(file) is Active_file, and the name of a
// value with a unit, which is always kB, ends in _bytes.
func parseMemory(b []byte) ([]model.Figure, error) {
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
			return nil, fmt.Errorf("meminfo: %w: %.80q", errMalformed, line)
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
	return figures, nil
}

// maxFigures limits the values of a file with names and values.
const maxFigures = 1024

// readPressure reads /proc/pressure, which a kernel may not have or may have disabled.
func (p *procReader) readPressure(_ time.Time, n *model.Node) error {
	for _, resource := range []string{"cpu", "io", "memory", "irq"} {
		stats, err := p.lib.PSIStatsForResource(resource)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return fmt.Errorf("pressure of %s: %w", resource, err)
		}
		n.Pressure = append(n.Pressure,
			model.Pressure{Resource: resource, Some: stalled(stats.Some), Full: stalled(stats.Full)})
	}
	return nil
}

// stalled converts a total from microseconds to seconds.
func stalled(l *procfs.PSILine) *float64 {
	if l == nil {
		return nil
	}
	return new(float64(l.Total) / 1000 / 1000)
}

// readFiles reads /proc/sys/fs/file-nr.
func (p *procReader) readFiles(_ time.Time, n *model.Node) error {
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
func (p *procReader) readEntropy(_ time.Time, n *model.Node) error {
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
