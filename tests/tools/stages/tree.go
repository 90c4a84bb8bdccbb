// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is a process of a tree.
type process struct {
	pid, depth         int
	name, state, wchan string // wchan: the kernel function it sleeps in
	command            string
}

// tree lists a process and its descendants (/proc/PID/task/*/children), parents first.
func tree(root int) []process {
	var all []process
	var add func(pid, depth int)
	add = func(pid, depth int) {
		p, ok := read(pid)
		if !ok {
			return
		}
		p.depth = depth
		all = append(all, p)
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, task := range tasks {
			children, _ := os.ReadFile(task)
			for child := range strings.FieldsSeq(string(children)) {
				if n, err := strconv.Atoi(child); err == nil {
					add(n, depth+1)
				}
			}
		}
	}
	add(root, 0)
	return all
}

// read reads /proc/PID/stat, cmdline and wchan.
func read(pid int) (process, bool) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return process{}, false
	}
	name, rest, _ := strings.Cut(string(stat), ") ")
	_, name, _ = strings.Cut(name, "(")
	state, _, _ := strings.Cut(rest, " ")
	command, _ := os.ReadFile(dir + "cmdline")
	wchan, _ := os.ReadFile(dir + "wchan")
	text := strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
	if exe, err := os.Readlink(dir + "exe"); err == nil {
		name = filepath.Base(exe) // stat contains only the first 15 bytes of the name
	}
	return process{pid: pid, name: name, state: state, wchan: string(wchan), command: text}, true
}

// draw prints one line per process, indented below its parent.
func draw(processes []process) string {
	var out strings.Builder
	for _, p := range processes {
		fmt.Fprintf(&out, "%s%d %s %s [%s] %.200s\n", strings.Repeat("  ", p.depth+1), p.pid, p.state, p.name, p.wchan, p.command)
	}
	return out.String()
}
