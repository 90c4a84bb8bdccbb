// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

// prepare runs the stages that the lanes need, and artifacts if a stage needs them that will run.
func (r *runner) prepare(ctx context.Context, first []string, lanes []lane) bool {
	for _, name := range first {
		if !r.stage(ctx, "make", name) {
			return false
		}
	}
	var err error
	if r.machine, err = machine(ctx); err != nil {
		fmt.Println("all stages run:", err)
	}
	for _, l := range lanes {
		for _, name := range l.stages {
			if _, skip := r.passed(name, r.inputs(ctx, name)); !skip && slices.Contains(onArtifacts, name) {
				return r.stage(ctx, "make", artifacts)
			}
		}
	}
	return true
}

// changed runs a stage, unless it passed with the same inputs. It remembers a stage that passed if its inputs did not
// change meanwhile and no guest ran again.
func (r *runner) changed(ctx context.Context, command ...string) {
	name := command[len(command)-1]
	sum := r.inputs(ctx, name)
	if when, ok := r.passed(name, sum); ok {
		r.print(fmt.Sprintf("%s unchanged since it passed at %s\n", name, when.Format("2006-01-02 15:04")))
		r.mu.Lock()
		r.results = append(r.results, result{name: name, verdict: unchanged})
		r.mu.Unlock()
		return
	}
	passed := r.stage(ctx, command...)
	text, _ := os.ReadFile(filepath.Join(logs, name+".log"))
	keep := passed && r.inputs(ctx, name) == sum && !strings.Contains(string(text), shown+vm.Again)
	if err := r.memory.keep(name, sum, keep); err != nil {
		r.print(fmt.Sprintf("%s is not remembered: %v\n", name, err))
	}
}

func (r *runner) passed(name, sum string) (time.Time, bool) {
	if r.all {
		return time.Time{}, false
	}
	return r.memory.passed(name, sum)
}

// inputs returns a checksum of a stage's inputs, or "" if they are unknown.
func (r *runner) inputs(ctx context.Context, name string) string {
	if r.machine == "" {
		return ""
	}
	return inputs(ctx, name, r.machine)
}
