// SPDX-License-Identifier: Apache-2.0

// Command mutate changes operators of packages, one at a time, and counts after how many changes the tests of the package fail.
// gremlins makes the changes and runs the tests. The command first shows, on a module that is made up, that gremlins distinguishes the
// outcomes.
//
//	go run ./tests/tools/mutate -gremlins PATH [-sample 0.1] [-seed 7] PACKAGE...
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// target is the share of changes that the tests of each package must notice.
const target = 0.85

// changes are the kinds of changes beside gremlins's own. Its inversion of negatives repeats its change of arithmetic.
var changes = []string{"--invert-logical", "--invert-assignments", "--remove-self-assignments", "--invert-negatives=false"}

// slower is how many times as long as the tests without a change a test may take. Other work on the machine also takes time.
const slower = "5"

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		beGo()
	}
	tool := flag.String("gremlins", "gremlins", "the program")
	sample := flag.Float64("sample", 1, "share of the changes that are tried")
	seed := flag.Uint64("seed", rand.Uint64N(1000), "chooses the changes that are tried")
	flag.Parse()
	if err := run(choice{*seed, *sample}, *tool, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(c choice, tool string, packages []string) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if tool, err = exec.LookPath(tool); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.Symlink(self, filepath.Join(dir, "bin/go"))); err != nil {
		return err
	}
	g := gremlins{path: tool, dir: dir}
	if err := g.check(); err != nil {
		return err
	}
	fmt.Printf("%.0f %% of the changes, chosen by SEED=%d; without changes that do not build\n", c.Share*100, c.Seed)
	var few []string
	var lived []mutant
	fmt.Printf(rowFormat, "package", "mutants", "tried", "killed", "lived", "timed out", "share")
	for _, p := range packages {
		all, err := g.run(c, ".", p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		r := count(all)
		share := float64(r[killed]) / float64(r.tried())
		fmt.Printf(rowFormat, p, len(all), r.tried(), r[killed], r[survived], r[timedOut], fmt.Sprintf("%.0f %%", share*100))
		if share < target {
			few = append(few, p)
		}
		lived = append(lived, all...)
	}
	for _, m := range lived {
		if m.Status != killed && m.Status != notViable {
			fmt.Println(m)
		}
	}
	if len(few) > 0 {
		return fmt.Errorf("less than %.0f %% killed: %s", target*100, strings.Join(few, " "))
	}
	return nil
}

const rowFormat = "%-28s %8v %6v %7v %6v %10v %6v\n"

// Outcomes, in gremlins's words.
const (
	killed    = "KILLED"
	survived  = "LIVED"
	timedOut  = "TIMED OUT"
	notViable = "NOT VIABLE" // it does not build, or was not chosen
)

// outcomes has the number of mutants with each outcome.
type outcomes map[string]int

func count(all []mutant) outcomes {
	o := outcomes{}
	for _, m := range all {
		o[m.Status]++
	}
	return o
}

// tried includes mutants whose tests did not end in time, which are not killed: other work on the machine can be the reason.
func (o outcomes) tried() int { return o[killed] + o[survived] + o[timedOut] }

// A mutant is a change of an operator.
type mutant struct {
	Type, Status string
	Line, Column int
	file         string
}

func (m mutant) String() string {
	return fmt.Sprintf("%s: %s:%d:%d %s", strings.ToLower(m.Status), m.file, m.Line, m.Column, m.Type)
}

// gremlins is the program, with a directory for its report and, in bin, for the program that it runs as go.
type gremlins struct{ path, dir string }

// run returns the mutants of a package, without the packages below it, in a module.
func (g gremlins) run(c choice, module, pkg string) ([]mutant, error) {
	bin, report := filepath.Join(g.dir, "bin"), filepath.Join(g.dir, "report.json")
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	args := append([]string{"unleash", "--workers=1", "--timeout-coefficient=" + slower, "--exclude-files=/", "--output=" + report}, changes...)
	cmd := child.Command(context.Background(), g.path, append(args, pkg)...)
	cmd.Dir = module
	// -count=1: the time limit depends on how long the tests take without a change, which must not come from go's cache.
	cmd.Env = append(os.Environ(), choiceVar+"="+string(text), pathVar+"="+os.Getenv("PATH"), "PATH="+bin+":"+os.Getenv("PATH"),
		"GOFLAGS=-count=1 -vet=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return readReport(report, pkg)
}

func readReport(path, pkg string) (all []mutant, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var report struct {
		Files []struct {
			Name      string `json:"file_name"`
			Mutations []mutant
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, err
	}
	for _, f := range report.Files {
		for _, m := range f.Mutations {
			m.file = filepath.Join(pkg, f.Name)
			all = append(all, m)
		}
	}
	return all, os.Remove(path)
}
