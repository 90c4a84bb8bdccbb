// SPDX-License-Identifier: Apache-2.0

//go:build vm

package ansible

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/machine"
)

// vars are variables of the role.
type vars map[string]any

// with returns a copy of v with more variables.
func (v vars) with(more vars) vars {
	all := maps.Clone(v)
	maps.Copy(all, more)
	return all
}

// A node is a machine on which the playbooks run; they run on the machine itself.
type node struct {
	*machine.Machine
	dir     string // shared with the machine: inventory, variables, packages
	systemd bool   // whether systemd runs for the playbooks
}

var taskLine = regexp.MustCompile(`^(?:TASK|RUNNING HANDLER) \[(?:accelscope : )?([^]]+)\]`)

// A result is the outcome of a playbook.
type result struct {
	failed  bool
	changed []string // tasks and handlers, in order
	raw     string   // the complete output
}

// play runs an unchanged playbook of deploy/ansible.
func (n node) play(t *testing.T, playbook string, v vars, flags ...string) result {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.dir, "vars.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-C", playbooks(t), "ansible-playbook", "-i", filepath.Join(n.dir, "inventory"), "-e", "@" + file, playbook,
	}
	name, args := "env", append(args, flags...)
	if !n.systemd { // another program is the first process
		name, args = "unshare", append([]string{"--mount", "--pid", "--fork", "--mount-proc", name}, args...)
	}
	began := time.Now()
	out, err := n.Command(t.Context(), name, args...).CombinedOutput()
	t.Logf("%s %v took %v", playbook, flags, time.Since(began).Round(time.Second))
	r := result{failed: err != nil, raw: string(out)}
	var task string // the task to which the next lines belong
	for line := range strings.Lines(r.raw) {
		if match := taskLine.FindStringSubmatch(line); match != nil {
			task = match[1]
		} else if strings.HasPrefix(line, "changed: [") && !slices.Contains(r.changed, task) {
			r.changed = append(r.changed, task)
		}
	}
	if task == "" {
		t.Fatalf("%s ran no task: %v: %s", playbook, err, r.raw)
	}
	return r
}

// want runs a playbook, which must succeed and change exactly these tasks.
func (n node) want(t *testing.T, playbook string, v vars, changed []string, flags ...string) result {
	t.Helper()
	r := n.play(t, playbook, v, flags...)
	if r.failed {
		t.Fatalf("%s fails: %s", playbook, r.raw)
	}
	if !slices.Equal(r.changed, changed) {
		t.Errorf("changed:\n%s\nwant:\n%s", strings.Join(r.changed, "\n"), strings.Join(changed, "\n"))
	}
	return r
}

// sh runs a shell command in the machine; it must succeed.
func (n node) sh(t *testing.T, line string) string {
	t.Helper()
	out, err := n.Sh(t.Context(), line)
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return strings.TrimRight(out, "\n")
}

func playbooks(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../../deploy/ansible")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
