// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/eeprom"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	linkPorts      = 8   // of the test's driver, each with a Soft-RoCE device
	linkStatistics = 500 // of `ethtool -S`, about as many as mlx5 has
	linkMinutes    = 5   // a round of the configuration and the modules
	linktest       = "/sys/kernel/debug/linktest"
	tracing        = "/sys/kernel/tracing"
)

// measureLinks measures, in a guest, the cost of the source link per port. The ports belong to the kernel module
// linktest, whose driver counts its calls and answers at once: a real driver's time is not included.
func measureLinks(ctx context.Context, sensor string, short bool, out io.Writer) error {
	kernel, err := vm.FetchKernel(ctx, "6.12")
	if err != nil {
		return err
	}
	module, err := vm.BuildModule(ctx, kernel, "tests/machines/vm/driver/linktest.c")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if sensor, err = filepath.Abs(sensor); err != nil {
		return err
	}
	res, err := vm.Run(ctx, vm.Options{
		Kernel: "6.12", Stdout: out, Timeout: 30 * time.Minute,
		Command: []string{self, "-accelscope", sensor, "-links-inside", module, "-short=" + strconv.FormatBool(short)},
	})
	if err == nil && res.Status != 0 {
		err = fmt.Errorf("exit status %d in the guest", res.Status)
	}
	return err
}

func linksInside(ctx context.Context, module, sensor string, short bool, out io.Writer) error {
	minutes := linkMinutes
	if short {
		minutes = 1
	}
	if err := makePorts(ctx, module); err != nil {
		return err
	}
	with, err := startQuiet(ctx, sensor, "127.0.0.1:9848")
	if err != nil {
		return err
	}
	without, err := startQuiet(ctx, sensor, "127.0.0.1:9849", "--no-collector.link")
	if err != nil {
		return err
	}
	time.Sleep(time.Minute) // the first readings ask for what drivers lack
	locks, err := traceRTNL()
	if err != nil {
		return err
	}
	before, err := linkCostOf(with, without)
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(minutes) * time.Minute)
	after, err := linkCostOf(with, without)
	if err != nil {
		return err
	}
	held, err := locks(with)
	if err != nil {
		return err
	}
	per := 1 / float64(linkPorts*minutes)
	fmt.Fprintf(out, "\nLinks: cost of the source link per port and minute, mean of %d ports and %d minutes, in an emulated guest, where CPU time is about ten times\n"+
		"as much. The driver is that of the tests, with %d statistics and an optical module; it answers at once.\n", linkPorts, minutes, linkStatistics)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	total := 0.0
	for _, op := range after.operations() {
		n := float64(after.calls[op]-before.calls[op]) * per
		total += n
		fmt.Fprintf(w, "calls of the driver, %s\t%.2f\t\n", op, n)
	}
	fmt.Fprintf(w, "calls of the driver\t%.2f\tcounted by the driver\n", total)
	fmt.Fprintf(w, "bytes of EEPROM\t%.1f\tcounted by the driver\n", float64(after.eeprom-before.eeprom)*per)
	fmt.Fprintf(w, "CPU\t%.2f ms\tof the sensor, less that of one without the source\n", (after.cpu-before.cpu).Seconds()*1e3*per)
	fmt.Fprintf(w, "RTNL held\t%.3f ms\t%d times; from the return of rtnl_lock to rtnl_unlock in the sensor's threads, by kprobes\n",
		held.sum.Seconds()*1e3*per, held.times)
	fmt.Fprintf(w, "RTNL held at a time\t%.3f ms\tat most, with preemption\n", held.longest.Seconds()*1e3)
	return w.Flush()
}

// makePorts loads the module and gives each port what an mlx5 port has.
func makePorts(ctx context.Context, module string) error {
	statistics := []byte("rx_prio3_pause 1\nrx_prio3_pause_duration 2\ntx_pause_storm_error_events 3\n")
	for i := range linkStatistics - 3 {
		statistics = fmt.Appendf(statistics, "rx%d_packets %d\n", i, i)
	}
	commands := [][]string{
		{"sh", "-c", "mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug"},
		{"sh", "-c", "mountpoint -q " + tracing + " || mount -t tracefs none " + tracing},
		{"modprobe", "rdma_rxe"},
		{"insmod", module, "driver=mlx5_core", fmt.Sprint("ports=", linkPorts)},
	}
	for i := range linkPorts {
		port := fmt.Sprint("linktest", i)
		commands = append(commands, []string{"ip", "link", "set", port, "up"},
			[]string{"rdma", "link", "add", fmt.Sprint("rxe", i), "type", "rxe", "netdev", port})
	}
	for _, c := range commands {
		if text, err := child.Command(ctx, c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(c, " "), err, text)
		}
	}
	for i := range linkPorts {
		dir := filepath.Join(linktest, fmt.Sprint("linktest", i))
		for file, text := range map[string][]byte{"statistics": statistics, "module/eeprom": eeprom.SR8(), "dcb/pfc_enabled": []byte("8")} {
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// startQuiet starts a sensor that reads only HCAs and links and is not scraped. It returns the process ID.
func startQuiet(ctx context.Context, sensor, address string, more ...string) (pid int, err error) {
	cmd := child.Command(ctx, sensor, append([]string{
		"--web.listen-address=" + address, "--log.level=error", "--no-collector.probe", "--no-collector.node", "--no-collector.container",
		"--no-collector.gpu", "--no-collector.access", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.kernellog",
		"--no-collector.pci", "--no-collector.cgroup",
	}, more...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// linkCost is the cost of the source since the start.
type linkCost struct {
	calls  map[string]uint64 // of the driver, by operation
	eeprom uint64            // bytes
	cpu    time.Duration
}

func (c linkCost) operations() []string {
	var all []string
	for op := range c.calls {
		all = append(all, op)
	}
	slices.Sort(all)
	return all
}

func linkCostOf(with, without int) (c linkCost, err error) {
	c.calls = map[string]uint64{}
	read := func(path string) uint64 {
		text, failed := os.ReadFile(path)
		n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		err = errors.Join(err, failed, bad)
		return n
	}
	for i := range linkPorts {
		dir := filepath.Join(linktest, fmt.Sprint("linktest", i))
		files, failed := filepath.Glob(filepath.Join(dir, "calls/*"))
		err = errors.Join(err, failed)
		for _, file := range files {
			c.calls[filepath.Base(file)] += read(file)
		}
		c.eeprom += read(filepath.Join(dir, "module/bytes_read"))
	}
	spent, failed := cpuTime(with)
	base, bad := cpuTime(without)
	c.cpu = spent - base
	return c, errors.Join(err, failed, bad)
}

// rtnlTime is the time for which threads held RTNL.
type rtnlTime struct {
	times        int
	sum, longest time.Duration
}

// traceRTNL traces who gets and releases RTNL. The returned function ends the trace and adds up a process's times.
func traceRTNL() (func(pid int) (rtnlTime, error), error) {
	write := func(file, text string) error {
		return os.WriteFile(filepath.Join(tracing, file), []byte(text), 0o600)
	}
	err := errors.Join(write("kprobe_events", "r:rtnl/got rtnl_lock\np:rtnl/release rtnl_unlock\n"), write("events/rtnl/enable", "1"))
	return func(pid int) (rtnlTime, error) {
		text, err := os.ReadFile(filepath.Join(tracing, "trace"))
		threads, failed := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		err = errors.Join(err, failed, write("events/rtnl/enable", "0"), write("kprobe_events", ""))
		own := map[string]bool{}
		for _, t := range threads {
			own[t.Name()] = true
		}
		return sumRTNL(string(text), own), err
	}, err
}

var rtnlEvent = regexp.MustCompile(`^ *\S.*-(\d+) +(?:\(.*\) +)?\[\d+\] .* (\d+\.\d+): (got|release): `)

// sumRTNL adds up the times between the events of the threads.
func sumRTNL(trace string, threads map[string]bool) (sum rtnlTime) {
	since := map[string]float64{}
	for line := range strings.Lines(trace) {
		m := rtnlEvent.FindStringSubmatch(line)
		if m == nil || !threads[m[1]] {
			continue
		}
		at, err := strconv.ParseFloat(m[2], 64)
		begin, held := since[m[1]]
		switch {
		case err != nil:
		case m[3] == "got":
			since[m[1]] = at
		case held:
			delete(since, m[1])
			d := time.Duration((at - begin) * float64(time.Second))
			sum.times++
			sum.sum, sum.longest = sum.sum+d, max(sum.longest, d)
		}
	}
	return sum
}
