// SPDX-License-Identifier: Apache-2.0

// Command stages runs the stages of `make test`, each a make target, and prints their time and CPU time. Stages of a
// lane run one after the other; lanes run in parallel, because guests often wait and builds do not. The first lane has
// the highest priority: an emulated guest without CPU looks like a guest that hangs. The stages of -idle have the
// lowest priority. The stages of -spare run after all others if there is time, and end when it is over.
//
// A stage's output goes to a log file and is shown if the stage fails. A stage hangs if its log does not grow for eight
// minutes while nothing is compiled: its process tree and its tests' goroutines are printed, its processes are killed,
// and it fails.
//
// A stage of a lane that passed within a week with the same inputs (inputs.go) is not run again, unless -all is set.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

func main() {
	first := flag.String("first", "", "stages that all others need, separated by commas")
	built := flag.String("built", "", "targets that artifacts and the stages of -first have made, separated by commas: not made again")
	all := flag.Bool("all", false, "also run stages that passed with the same inputs")
	idle := flag.String("idle", "", "stages of a lane of the lowest priority, separated by commas")
	spare := flag.String("spare", "", "stages for the time that is left of an hour, separated by commas")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: stages [flags] LANE... (a lane: make targets, separated by commas)")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var lanes []lane
	for i, list := range flag.Args() {
		l := lane{stages: fields(list)}
		if i > 0 {
			l.nice = 3
		}
		lanes = append(lanes, l)
	}
	lanes = append(lanes, lane{fields(*idle), 19})
	r := runner{all: *all, spare: fields(*spare)}
	for _, target := range fields(*built) {
		r.built = append(r.built, "--old-file="+target)
	}
	cache, err := vm.CacheDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stages:", err)
		os.Exit(1)
	}
	r.memory.dir = filepath.Join(cache, "stages")
	if !r.run(ctx, fields(*first), lanes) {
		os.Exit(1)
	}
}

func fields(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

const (
	logs    = "bin/test"                           // directory of the stages' logs
	silence = vm.Silence + vm.Quit + 2*time.Minute // how long a stage may print nothing
)

// lane is a list of stages that run one after the other, with a value of nice(1).
type lane struct {
	stages []string
	nice   int
}

// runner runs stages and keeps their results.
type runner struct {
	built   []string // options for make
	all     bool     // run also stages that passed with the same inputs
	spare   []string // stages for the time that is left
	memory  memory
	machine string // what machine returned; "": unknown, and all stages run

	mu      sync.Mutex // guards the terminal, results and again
	results []result
	again   int // guests that ran again
}

type result struct {
	name      string
	took, cpu time.Duration
	verdict   string
}

// Verdicts of stages.
const (
	ok        = "ok"
	failed    = "FAILED"
	unchanged = "unchanged"   // not run
	unended   = "out of time" // a spare stage; also if it did not begin
)

// run runs all stages, prints their table, and reports whether all passed.
func (r *runner) run(ctx context.Context, first []string, lanes []lane) bool {
	began := time.Now()
	if err := os.MkdirAll(logs, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "stages:", err)
		return false
	}
	if !r.prepare(ctx, first, lanes) {
		lanes = nil
	}
	var all sync.WaitGroup
	for _, l := range lanes {
		command := append([]string{"nice", "-n", strconv.Itoa(l.nice), "make"}, r.built...)
		all.Go(func() {
			for _, name := range l.stages {
				if ctx.Err() == nil {
					r.changed(ctx, append(command, name)...)
				}
			}
		})
	}
	all.Wait()
	r.runSpare(ctx, began)
	return r.summarize(time.Since(began)) && ctx.Err() == nil
}

// summarize prints the table of stages, and reports whether none failed and few guests ran again.
func (r *runner) summarize(took time.Duration) bool {
	count, cpu := map[string]int{}, time.Duration(0)
	fmt.Println()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "stage\tresult\tseconds\tof CPU\t\n")
	for _, s := range r.results {
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%.0f\t\n", s.name, s.verdict, s.took.Seconds(), s.cpu.Seconds())
		count[s.verdict]++
		cpu += s.cpu
	}
	fmt.Fprintf(table, "total\t\t%.0f\t%.0f\t\n", took.Seconds(), cpu.Seconds())
	table.Flush()
	fmt.Printf("%d passed, %d unchanged, %d failed, %d guests ran again\n", count[ok], count[unchanged], count[failed], r.again)
	if r.again > vm.MostAgain {
		fmt.Printf("FAILED: at most %d guest of a run may run again\n", vm.MostAgain)
		return false
	}
	return count[failed] == 0
}

// stage runs a stage's command, with the stage's name as the last argument, and prints the result: the lines of the
// summary, and the end of the log if it failed.
func (r *runner) stage(ctx context.Context, command ...string) bool {
	name := command[len(command)-1]
	path := filepath.Join(logs, name+".log")
	r.print(fmt.Sprintf("%s begins (%s)\n", name, path))
	began := time.Now()
	cpu, err := watch(ctx, path, silence, command[0], command[1:]...)
	took := time.Since(began)
	text, _ := os.ReadFile(path)
	verdict, said := ok, fmt.Sprintf("%s passed in %.0f s\n", name, took.Seconds())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		verdict, said = unended, fmt.Sprintf("%s did not end in %.0f s\n", name, took.Seconds())
	case err != nil:
		verdict, said = failed, fmt.Sprintf("%s FAILED after %.0f s: %v\n%s\n", name, took.Seconds(), err, tail(text))
	}
	r.mu.Lock()
	r.results = append(r.results, result{name, took, cpu, verdict})
	r.again += strings.Count(string(text), shown+vm.Again)
	r.mu.Unlock()
	r.print(said + summary(text))
	return verdict == ok
}

func (r *runner) print(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Print(text)
}

// shown marks the log lines that are printed when the stage has ended.
const shown = "stage: "

// summary returns the lines of a stage's log that are printed when it has ended.
func summary(log []byte) string {
	var lines strings.Builder
	for line := range strings.Lines(string(log)) {
		if _, text, ok := strings.Cut(line, shown); ok {
			lines.WriteString("  " + text)
		}
	}
	return lines.String()
}

// tail returns the end of a log, and the lines before it that report a failure.
func tail(log []byte) string {
	const most = 64 << 10
	if len(log) <= most {
		return string(log)
	}
	var failures strings.Builder
	for line := range strings.Lines(string(log[:len(log)-most])) {
		if strings.Contains(line, "FAIL") {
			failures.WriteString(line)
		}
	}
	return failures.String() + "…\n" + string(log[len(log)-most:])
}
