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
	"sync"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
)

// The tools. The last three are optional.
const (
	ibnetdiscover = "ibnetdiscover"
	perfquery     = "perfquery"
	ibqueryerrors = "ibqueryerrors"
	iblinkinfo    = "iblinkinfo"
	sminfo        = "sminfo"
)

const (
	maxOutput = 64 << 20 // per tool: 10 000 nodes are about 10 MiB
	maxStderr = 1 << 20  // of ibqueryerrors: two lines for each silent host
	maxStuck  = 8        // killed tools that have not ended, beyond which no tool is started
	install   = "install infiniband-diags, or say where it is with --fabric.tools"
)

var (
	errOutput  = errors.New("unexpected output")
	errOption  = errors.New("not an option that is used here")
	errTimeout = errors.New("no answer in time")
)

// options lists the allowed options of each tool. None of them resets a counter, as -r and -R of perfquery and -k and
// -K of ibqueryerrors would. Short options, unlisted options, and a third operand of perfquery, its reset mask, are
// refused.
var options = map[string][]string{
	ibnetdiscover: {"--ports", "--list", "--cache", "--load-cache", "--node-name-map", "--Ca", "--Port"},
	perfquery:     {"--extended", "--loop_ports", "--Ca", "--Port"},
	ibqueryerrors: {"--data", "--skip-sl", "--ca", "--router", "--load-cache", "--threshold-file", "--timeout", "--Ca", "--Port"},
	iblinkinfo:    {"--line", "--load-cache", "--node-name-map", "--Ca", "--Port"},
	sminfo:        {"--Ca", "--Port"},
}

var (
	operand = lazily(`^[0-9][0-9,-]*$`)
	port    = lazily(`^([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})/([1-9][0-9]{0,2})$`)
)

type command struct {
	tool string
	args []string
}

func (c command) check() error {
	operands := 0
	for _, a := range c.args {
		name, _, _ := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "-"):
			if !slices.Contains(options[c.tool], name) {
				return fmt.Errorf("%s %s: %w", c.tool, a, errOption)
			}
		case c.tool != perfquery || !operand().MatchString(a):
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

type runner struct {
	child.Runner

	paths map[string]string
	port  []string // options for the port
	names []string // option for the file of names
	count func(tool, result string)
}

// CheckPort checks Options.Port.
func CheckPort(text string) error {
	if text != "" && !port().MatchString(text) {
		return fmt.Errorf("the port to read the fabric from is HCA/PORT, as mlx5_0/1, not %q", text)
	}
	return nil
}

func newRunner(o Options, count func(tool, result string)) (*runner, error) {
	r := &runner{Runner: child.Runner{MaxStuck: maxStuck}, paths: map[string]string{}, count: count}
	if err := CheckPort(o.Port); err != nil {
		return nil, err
	}
	if p := port().FindStringSubmatch(o.Port); p != nil {
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

func (r *runner) sweep(file string) command {
	return r.command(ibnetdiscover, true, "--ports", "--cache="+file)
}

// list and owners print the names and the nodes of ports from that file.
func (r *runner) list(file string) command {
	return r.command(ibnetdiscover, true, "--list", "--load-cache="+file)
}

func (r *runner) owners(file string) command {
	return r.command(ibnetdiscover, true, "--load-cache="+file)
}

func (r *runner) links(file string) command {
	return r.command(iblinkinfo, true, "--line", "--load-cache="+file)
}

func (r *runner) counters(extended bool, lid uint32, ports []int) command {
	args := []string{"--loop_ports"}
	if extended {
		args = append(args, "--extended")
	}
	return r.command(perfquery, false, append(args, strconv.FormatUint(uint64(lid), 10), ranges(ports))...)
}

// ranges formats sorted ports for perfquery: 1-40, or 1,3,5.
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

// errors reads the errors of all nodes of the sweep except switches, without thresholds. A silent host costs two
// requests of three attempts each: with the tool's default of a second per attempt, nine silent hosts would take the
// whole round.
func (r *runner) errors(file string) command {
	return r.command(ibqueryerrors, false,
		"--data", "--skip-sl", "--ca", "--router", "--timeout=200", "--threshold-file="+os.DevNull, "--load-cache="+file)
}

// output runs a tool until ctx ends, and returns its output; on an error, the output before it.
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
		return nil, fmt.Errorf("%s: %w: the round has ended", c.tool, errTimeout)
	}
	out, complaints, err := r.Run(ctx, child.Program{
		Path: r.paths[c.tool], Args: c.args, Dir: "/",
		Env:       []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		MaxStdout: maxOutput, MaxStderr: maxStderr,
	})
	var exit *exec.ExitError
	found := c.tool == ibqueryerrors && (err == nil || errors.As(err, &exit) && exit.ExitCode() == 1)
	switch {
	case found: // errors found in the fabric, not an error of the tool
		return append(out, complaints...), nil // they contain the LIDs without an answer
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
	message := string(complaints)
	if m := fatal().FindSubmatch(out); m != nil {
		message += string(m[1])
	}
	return out, &failure{c.tool, clean(lastLines(message)), err}
}

type failure struct {
	tool, message string
	err           error
}

// Error returns one line.
func (f *failure) Error() string {
	if f.message == "" {
		return fmt.Sprintf("%s: %v", f.tool, f.err)
	}
	return fmt.Sprintf("%s: %v: %s", f.tool, f.err, f.message)
}

// Unwrap returns the error of the process.
func (f *failure) Unwrap() error { return f.err }

// lazily returns a function that compiles a regular expression at its first call: most nodes read no fabric.
func lazily(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// fatal matches the reason of a failure in the output of a tool, after the path of the tool.
var fatal = lazily(`(?m)^(?:/.*/)?((?:[a-z]+: iberror: |ibpanic: ).*)$`)

// process matches the beginning of a warning, which contains the process id.
var process = lazily(`(?m)^ib[a-z]+: \[[0-9]+\] `)

func lastLines(text string) string {
	text = process().ReplaceAllString(text, "")
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
