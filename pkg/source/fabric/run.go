// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
)

// The tools. Without the last two less is known.
const (
	ibnetdiscover = "ibnetdiscover"
	perfquery     = "perfquery"
	ibqueryerrors = "ibqueryerrors"
	iblinkinfo    = "iblinkinfo"
)

const (
	maxOutput = 64 << 20 // of a tool: 10 000 nodes are about 10 MiB
	maxStderr = 1 << 20  // of ibqueryerrors two lines for each host that does not answer
	maxStuck  = 8        // tools that cannot be ended, before none is started
	install   = "install infiniband-diags, or say where it is with --fabric.tools"
)

var (
	errOutput  = errors.New("unexpected output")
	errOption  = errors.New("not an option that is used here")
	errTimeout = errors.New("no answer in time")
)

// options are what a tool may get. None of them resets a counter: perfquery does so
// for -r and -R, ibqueryerrors for -k and -K. A short option, one that is not here,
// or a third operand of perfquery, its reset mask, is refused.
var options = map[string][]string{
	ibnetdiscover: {"--ports", "--list", "--cache", "--load-cache", "--node-name-map", "--Ca", "--Port"},
	perfquery:     {"--extended", "--loop_ports", "--Ca", "--Port"},
	ibqueryerrors: {"--data", "--skip-sl", "--ca", "--router", "--load-cache", "--threshold-file", "--timeout", "--Ca", "--Port"},
	iblinkinfo:    {"--line", "--load-cache", "--node-name-map", "--Ca", "--Port"},
}

var (
	operand = regexp.MustCompile(`^[0-9][0-9,-]*$`)
	port    = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})/([1-9][0-9]{0,2})$`)
)

// command is a tool and what it gets.
type command struct {
	tool string
	args []string
}

// check refuses what is not on the list.
func (c command) check() error {
	operands := 0
	for _, a := range c.args {
		name, _, _ := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "-"):
			if !slices.Contains(options[c.tool], name) {
				return fmt.Errorf("%s %s: %w", c.tool, a, errOption)
			}
		case c.tool != perfquery || !operand.MatchString(a):
			return fmt.Errorf("%s %s: %w", c.tool, a, errOption)
		default:
			operands++
		}
	}
	if operands > 2 {
		return fmt.Errorf("%s: a reset mask: %w", c.tool, errOption)
	}
	return nil
}

// runner starts the tools.
type runner struct {
	child.Runner

	paths map[string]string
	port  []string // options that choose the port
	names []string // and the file of names
	count func(tool, result string)
}

func newRunner(o Options, count func(tool, result string)) (*runner, error) {
	r := &runner{Runner: child.Runner{MaxStuck: maxStuck}, paths: map[string]string{}, count: count}
	if o.Port != "" {
		p := port.FindStringSubmatch(o.Port)
		if p == nil {
			return nil, fmt.Errorf("the port to read the fabric from is HCA/PORT, as mlx5_0/1, not %q", o.Port)
		}
		r.port = []string{"--Ca=" + p[1], "--Port=" + p[2]}
	}
	if o.NodeNameMap != "" {
		file, err := filepath.Abs(o.NodeNameMap)
		if err == nil {
			_, err = os.Stat(file)
		}
		if err != nil {
			return nil, fmt.Errorf("names of nodes: %w", err)
		}
		r.names = []string{"--node-name-map=" + file}
	}
	dirs := []string{o.Tools}
	if o.Tools == "" {
		dirs = []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"}
	}
	for tool := range options {
		for _, dir := range dirs {
			if path, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
				r.paths[tool], _ = filepath.Abs(path)
				break
			}
		}
	}
	for _, tool := range []string{ibnetdiscover, perfquery} {
		if !r.has(tool) {
			return nil, fmt.Errorf("%s is not in %s: %s: %w", tool, strings.Join(dirs, ", "), install, model.ErrUnsupported)
		}
	}
	return r, nil
}

func (r *runner) has(tool string) bool { return r.paths[tool] != "" }

func (r *runner) command(tool string, names bool, args ...string) command {
	args = append(args, r.port...)
	if names {
		args = append(args, r.names...)
	}
	return command{tool, args}
}

// sweep asks the fabric, and keeps the answers in a file.
func (r *runner) sweep(file string) command {
	return r.command(ibnetdiscover, true, "--ports", "--cache="+file)
}

// list and owners ask that file for the names, and for the nodes of ports.
func (r *runner) list(file string) command {
	return r.command(ibnetdiscover, true, "--list", "--load-cache="+file)
}

func (r *runner) owners(file string) command {
	return r.command(ibnetdiscover, true, "--load-cache="+file)
}

// links asks it for what links could be.
func (r *runner) links(file string) command {
	return r.command(iblinkinfo, true, "--line", "--load-cache="+file)
}

// counters asks a switch for its ports' counters.
func (r *runner) counters(extended bool, lid uint32, ports []int) command {
	args := []string{"--loop_ports"}
	if extended {
		args = append(args, "--extended")
	}
	return r.command(perfquery, false, append(args, strconv.FormatUint(uint64(lid), 10), ranges(ports))...)
}

// ranges is how perfquery takes ports: sorted ones as 1-40, or 1,3,5.
func ranges(ports []int) string {
	if n := len(ports); n > 1 && ports[n-1]-ports[0] == n-1 {
		return fmt.Sprintf("%d-%d", ports[0], ports[n-1])
	}
	var list []string
	for _, p := range ports {
		list = append(list, strconv.Itoa(p))
	}
	return strings.Join(list, ",")
}

// errors asks all nodes of the sweep that are no switches for errors: for all, not
// for those beyond the thresholds of a file. A host that does not answer costs two
// questions of three tries each: at the tool's own second for each, nine such hosts
// would cost the round.
func (r *runner) errors(file string) command {
	return r.command(ibqueryerrors, false,
		"--data", "--skip-sl", "--ca", "--router", "--timeout=200", "--threshold-file="+os.DevNull, "--load-cache="+file)
}

// output runs a tool until ctx ends, and returns what it prints; with an error,
// what it printed before that.
func (r *runner) output(ctx context.Context, c command) ([]byte, error) {
	out, err := r.start(ctx, c)
	result := "ok"
	switch {
	case errors.Is(err, errTimeout):
		result = "timeout"
	case err != nil:
		result = "error"
	}
	r.count(c.tool, result)
	return out, err
}

func (r *runner) start(ctx context.Context, c command) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w: the round is over", c.tool, errTimeout)
	}
	out, complaints, err := r.Run(ctx, child.Program{
		Path: r.paths[c.tool], Args: c.args, Dir: "/",
		Env:       []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		MaxStdout: maxOutput, MaxStderr: maxStderr,
	})
	var exit *exec.ExitError
	found := c.tool == ibqueryerrors && (err == nil || errors.As(err, &exit) && exit.ExitCode() == 1)
	switch {
	case found: // errors, which is none of the tool
		return append(out, complaints...), nil // they say who did not answer
	case err == nil:
		return out, nil
	case errors.Is(err, child.ErrStuck):
		return nil, fmt.Errorf("%s: %w: killed, and does not end", c.tool, errTimeout)
	case errors.Is(err, child.ErrTooManyStuck):
		return nil, fmt.Errorf("%d tools were killed and do not end: look at the HCA and its driver", maxStuck)
	case errors.Is(err, child.ErrOutput):
		return nil, fmt.Errorf("%s prints more than %d MiB: %w", c.tool, maxOutput>>20, errOutput)
	case ctx.Err() != nil:
		err = errTimeout
	}
	says := string(complaints)
	if m := fatal.FindSubmatch(out); m != nil {
		says += string(m[1])
	}
	return out, &failure{c.tool, clean(lastLines(says)), err}
}

// failure is a tool that failed.
type failure struct {
	tool, says string
	err        error
}

// Error is a line.
func (f *failure) Error() string {
	if f.says == "" {
		return fmt.Sprintf("%s: %v", f.tool, f.err)
	}
	return fmt.Sprintf("%s: %v: %s", f.tool, f.err, f.says)
}

// Unwrap is how the process ended.
func (f *failure) Unwrap() error { return f.err }

// fatal is why a tool ends, which is among what it prints, behind the path that it was
// started by.
var fatal = regexp.MustCompile(`(?m)^(?:/.*/)?((?:[a-z]+: iberror: |ibpanic: ).*)$`)

// process is what warnings begin with, and differs each time.
var process = regexp.MustCompile(`(?m)^ib[a-z]+: \[[0-9]+\] `)

// lastLines is the end of what a tool says when it fails, in one line.
func lastLines(text string) string {
	text = process.ReplaceAllString(text, "")
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
