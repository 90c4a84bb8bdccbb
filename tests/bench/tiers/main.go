// SPDX-License-Identifier: Apache-2.0

// Command tiers measures the time that the probes add to a verbs call. It boots a guest with Soft-RoCE and runs a loop
// of query_qp and one of reg_mr and dereg_mr: without a sensor, with each tier, and with a sensor that sends an event
// for each call through a ring buffer. getpid is an unrelated system call. Emulation makes everything about ten times
// slower, so only the ratios are meaningful. All variants are measured in turn, in rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const address = "127.0.0.1:9847"

func main() {
	kernel := flag.String("kernel", "6.1", "5.10, 6.1 or 6.12")
	binary := flag.String("accelscope", "bin/accelscope", "the program to measure")
	rounds := flag.Int("rounds", 3, "rounds")
	inside := flag.String("inside", "", "this is the guest, the workloads are there (for its own use)")
	flag.Parse()
	var err error
	if *inside != "" {
		err = measure(*inside, *binary, *rounds)
	} else {
		err = boot(*kernel, *binary, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(1)
	}
}

func boot(kernel, binary string, rounds int) error {
	ctx := context.Background()
	workloads, err := vm.BuildWorkloads(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	fmt.Printf("What a verbs call costs (kernel %s, emulated)\n\n", kernel)
	res, err := vm.Run(ctx, vm.Options{
		Kernel: kernel, Devices: 1, Stdout: os.Stdout, Timeout: 10 * time.Minute,
		Command: []string{self, "-accelscope", binary, "-rounds", strconv.Itoa(rounds), "-inside", workloads},
	})
	if err != nil {
		return err
	}
	if res.Status != 0 {
		return fmt.Errorf("exit status %d in the guest", res.Status)
	}
	return nil
}

// A variant is a method to trace the calls, and the function that starts it.
type variant struct {
	name  string
	start func() (stop func() error, err error)
}

// figures are nanoseconds per call, one value per round.
type figures map[string][]float64

func measure(workloads, binary string, rounds int) error {
	variants := []variant{
		{"none", func() (func() error, error) { return func() error { return nil }, nil }},
		{"fentry", func() (func() error, error) { return sensor(binary, "fentry") }},
		{"kprobe", func() (func() error, error) { return sensor(binary, "kprobe") }},
		{"tracepoint", func() (func() error, error) { return sensor(binary, "tracepoint") }},
		{"ring buffer", ringBuffer},
	}
	results := map[string]figures{}
	for range rounds {
		for _, v := range variants {
			stop, err := v.start()
			if err != nil {
				fmt.Printf("%s: not on this kernel: %v\n", v.name, err)
				continue
			}
			if results[v.name] == nil {
				results[v.name] = figures{}
			}
			err = loops(workloads, results[v.name])
			if err = errors.Join(err, stop()); err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ns a call, median\tquery_qp\tadded\tof ring buffer\treg_mr, dereg_mr\tadded\tgetpid\tadded\t")
	base, ring := results["none"], results["ring buffer"]
	for _, v := range variants {
		r := results[v.name]
		if r == nil {
			continue
		}
		share := "-"
		if ring != nil {
			share = fmt.Sprintf("%.2f", (median(r["query"])-median(base["query"]))/(median(ring["query"])-median(base["query"])))
		}
		fmt.Fprintf(w, "%s\t%.0f\t%+.0f\t%s\t%.0f\t%+.0f\t%.0f\t%+.0f\t\n", v.name,
			median(r["query"]), median(r["query"])-median(base["query"]), share,
			median(r["reg"]), median(r["reg"])-median(base["reg"]),
			median(r["getpid"]), median(r["getpid"])-median(base["getpid"]))
	}
	return w.Flush()
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// loops runs each loop once and records its result.
func loops(workloads string, f figures) error {
	for _, verb := range []string{"query", "reg"} {
		out, err := child.Command(context.Background(), filepath.Join(workloads, "loop"), "-d", "rxe0", "-n", "5000", verb).Output()
		if err != nil {
			return fmt.Errorf("loop %s: %w", verb, err)
		}
		// query 5000 calls 7762.8 ns/call
		var ns float64
		if _, err := fmt.Sscanf(string(out), verb+" 5000 calls %f", &ns); err != nil {
			return fmt.Errorf("loop %s printed %q", verb, out)
		}
		f[verb] = append(f[verb], ns)
	}
	const calls = 200_000
	begin := time.Now()
	for range calls {
		unix.Getpid()
	}
	f["getpid"] = append(f["getpid"], float64(time.Since(begin).Nanoseconds())/calls)
	return nil
}

// sensor runs accelscope with one tier.
func sensor(binary, tier string) (stop func() error, err error) {
	cmd := child.Command(context.Background(), binary, "--probe.tier="+tier, "--web.listen-address="+address, "--log.level=error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return cmd.Wait()
	}
	want := fmt.Sprintf(`hook="ib_uverbs_ioctl",state="ok",tier="%s"} 1`, tier)
	for range 100 {
		time.Sleep(200 * time.Millisecond)
		res, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
		res.Body.Close()
		if err == nil && strings.Contains(string(text), want) {
			return stop, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("tier %s is not attached", tier), stop())
}
