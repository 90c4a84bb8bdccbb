// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// A gate is a value of the sensor with a limit.
type gate struct {
	what  string
	value float64
	limit float64
}

// gates compares the sensor with other exporters of the same run: plain and crowded with 1.1 s between two scrapes,
// usual and bare (a node without a device) with 15 s.
func gates(plain, crowded, usual, bare *result) []gate {
	const a = accelscope
	p99 := func(r *result, peer string) float64 { return r.latency(a, 0.99) / r.latency(peer, 0.99) }
	return []gate{
		{"10 HCAs, 15 s: CPU / node_exporter's", usual.ratio(a, nodeExporter, cpu), 0.3},
		{"10 HCAs, 60 s: CPU / node_exporter's, computed", usual.everyMinute(a) / usual.everyMinute(nodeExporter), 0.5},
		{"10 HCAs, 1.1 s: CPU / node_exporter's", plain.ratio(a, nodeExporter, cpu), 0.2},
		{"10 HCAs, 1.1 s: CPU / the minimal program's", plain.ratio(a, floor, cpu), 1.6},
		{"10 HCAs, 1.1 s: CPU / the minimal program's with gzip", plain.ratio(a, floorGzip, cpu), 1.4},
		{"crowded: CPU / node_exporter's", crowded.ratio(a, nodeExporter, cpu), 0.12},
		{"crowded: p99 / the minimal program's", p99(crowded, floor), 1.3},
		{"10 HCAs: p90 / node_exporter's", plain.latency(a, 0.9) / plain.latency(nodeExporter, 0.9), 0.25},
		{"no device: idle, ms/s", bare.median(a, idleCPU), 0.2},
		{"10 HCAs: idle, ms/s", usual.median(a, idleCPU), 0.3},
		{"10 HCAs: heap objects per scrape", plain.median(a, allocs), 300},
		{"crowded: heap objects per scrape", crowded.median(a, allocs), 2000},
		{"10 HCAs: resident after all scrapes, MB", plain.median(a, rss), 30},
		{"10 HCAs: private after all scrapes, MB", plain.median(a, private), 8},
		{"10 HCAs: HWM at the first answer, MB", plain.median(a, startHWM), 36},
		{"size of the sensor's file, MB", plain.median(a, size), 26},
		{"start to first answer / the minimal program's", plain.ratio(a, floor, started), 3},
		{"firmware commands per mlx5 port and scrape, by table", plain.median(a, firmware), 29},
		{"system calls per counter in files", plain.median(a, syscalls) / float64(plain.counters), 1.2},
	}
}

func printGates(out io.Writer, node string, all []gate) {
	fmt.Fprintf(out, "\nLimits of the sensor. %s\n\n", node)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tlimit\tmeasured\tverdict")
	for _, g := range all {
		value, verdict := fmt.Sprintf("%.3g", g.value), "missed"
		switch {
		case math.IsNaN(g.value):
			value, verdict = "-", "not measured"
		case g.value <= g.limit:
			verdict = "met"
		}
		fmt.Fprintf(w, "%s\t%.3g\t%s\t%s\n", g.what, g.limit, value, verdict)
	}
	w.Flush()
}

// printLoad prints how busy the machine is before the measurements: other work makes times longer, not ratios wrong.
func printLoad(out io.Writer) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		fmt.Fprintln(out, "load before the measurements: unknown:", err)
		return
	}
	var last float64
	_, err = fmt.Sscan(string(b), &last)
	note := ""
	if err == nil && last > 0.5 {
		note = ": the machine is not idle, the quantiles of this run are not worth much"
	}
	fmt.Fprintf(out, "load before the measurements: %s%s\n", bytes.TrimSpace(b), note)
}

// printFiles compares a read of a regular file, as the nodes of this program have them, with a read of a file of sysfs.
func printFiles(out io.Writer) error {
	kernfs, err := filepath.Glob("/sys/class/net/*/statistics/*")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "files-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var regular []string
	for i := range kernfs {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte("1234567\n"), 0o600); err != nil {
			return err
		}
		regular = append(regular, path)
	}
	for _, kind := range []struct {
		name  string
		paths []string
	}{{"regular files, as on the nodes above", regular}, {"files of sysfs (statistics of network interfaces)", kernfs}} {
		each, err := readTime(kind.paths)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "One read of %d %s: %v\n", len(kind.paths), kind.name, each)
	}
	return nil
}

// readTime returns the time of one read of an open file, over many rounds through all files.
func readTime(paths []string) (time.Duration, error) {
	const rounds = 1000
	var files []*os.File
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		files = append(files, f)
	}
	buf := make([]byte, 64)
	begin := time.Now()
	for range rounds {
		for _, f := range files {
			if _, err := f.ReadAt(buf, 0); err != nil && buf[0] == 0 {
				return 0, err
			}
		}
	}
	return time.Since(begin) / time.Duration(max(rounds*len(files), 1)), nil
}
