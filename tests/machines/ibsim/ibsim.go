// SPDX-License-Identifier: Apache-2.0

// Package ibsim runs a simulated InfiniBand fabric with a real subnet manager, for tests of programs that read a
// fabric. ibsim simulates the switches and adapters. opensm and the tools of infiniband-diags are the real programs
// (Debian packages ibsim-utils, opensm, infiniband-diags); their libibumad talks to ibsim instead of a kernel.
//
//	net := ibsim.FatTree(8, 8, 4) // 64 hosts
//	fabric, err := ibsim.Start(ctx, ibsim.Options{Net: net.String(), Host: net.Nodes[net.Find("host0 mlx5_0")].ID()})
//	defer fabric.Close()
//	accelscope --collector.fabric --fabric.tools fabric.Tools …
//	fabric.Console(`Unlink ` + net.Port(ibsim.End{Node: 0, Port: 1}))
//	fabric.Console(`PerformanceSet ` + net.Port(end) + ` PortCounters.SymbolErrorCounter=5`)
//	fabric.Console(`PerformanceSet ` + net.Port(end) + ` PortCountersExtended.PortXmitData=1234567890123`)
//	fabric.Console(`Error "` + node.ID() + `"[0] 100 1`) // a switch whose performance manager does not answer
//
// Command tests/machines/ibsim/cmd/fabric does the same from a shell.
package ibsim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Options select the simulated fabric.
type Options struct {
	Net  string // a net file in the format of ibsim
	Host string // node id of the host that the tools run on; empty: the first node
	NoSM bool   // no subnet manager: nodes have only the LIDs of the net file
}

// Fabric is a simulated fabric.
type Fabric struct {
	// Tools is a directory with ibnetdiscover, perfquery, …: scripts that start the real tools on a host of this
	// fabric. ibsim serves at most ten processes, including opensm. A killed process occupies its slot until Reap. A
	// process that is killed while it connects ends ibsim.
	Tools string

	dir     string
	env     []string // environment of the programs that talk to ibsim
	started []*process

	mu    sync.Mutex // serializes commands on the console
	stdin io.Writer
	lines chan string
}

// The programs of infiniband-diags; each gets a script.
var tools = []string{
	"ibnetdiscover", "perfquery", "ibqueryerrors", "iblinkinfo", "smpquery", "sminfo", "ibstat", "ibswitches", "ibhosts", "saquery",
	"ibping",
}

const (
	ready   = "Network simulator ready."
	barrier = "simulator verbose level is" // the reply to the command Verbose, which is sent after each command
	patient = 2 * time.Minute              // for a busy machine
)

// Start starts ibsim and opensm and waits until the subnet is up.
func Start(ctx context.Context, o Options) (*Fabric, error) {
	dir, err := os.MkdirTemp("", "ibsim")
	if err != nil {
		return nil, err
	}
	f := &Fabric{dir: dir, Tools: filepath.Join(dir, "tools"), lines: make(chan string, 1<<10)}
	if err := f.start(ctx, o); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Fabric) start(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	found, _ := filepath.Glob("/usr/lib/*/umad2sim/libumad2sim.so")
	if len(found) == 0 {
		return errors.New("there is no libumad2sim.so: install the Debian package ibsim-utils")
	}
	work := filepath.Join(f.dir, "work") // umad2sim creates a directory for each process in the process's working directory
	net := filepath.Join(f.dir, "net")
	if err := errors.Join(os.Mkdir(work, 0o755), os.Mkdir(f.Tools, 0o755), os.WriteFile(net, []byte(o.Net), 0o644)); err != nil {
		return err
	}
	f.env = []string{
		"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "IBSIM_SOCKNAME=" + filepath.Base(f.dir), // the abstract socket needs no file
		"OSM_TMP_DIR=" + work, "OSM_CACHE_DIR=" + work,
	}
	if err := f.startSimulator(ctx, net, work); err != nil {
		return err
	}
	f.env = append(f.env, "LD_PRELOAD="+found[0])
	if o.Host != "" {
		f.env = append(f.env, "SIM_HOST="+o.Host)
	}
	for _, tool := range tools {
		if err := f.script(tool, work); err != nil {
			return err
		}
	}
	if o.NoSM {
		return nil
	}
	return f.startManager(ctx, work)
}

// script writes the script of a tool, with the environment that the tool needs.
func (f *Fabric) script(tool, work string) error {
	path, err := exec.LookPath(filepath.Join("/usr/sbin", tool))
	if err != nil {
		return fmt.Errorf("%w: install the Debian package infiniband-diags", err)
	}
	text := fmt.Sprintf("#!/bin/sh\n# Made by tests/machines/ibsim.\ncd %s || exit 1\nexport '%s'\nexec %s \"$@\"\n",
		work, strings.Join(f.env, "' '"), path)
	return os.WriteFile(filepath.Join(f.Tools, tool), []byte(text), 0o755)
}

func (f *Fabric) startSimulator(ctx context.Context, net, work string) error {
	in, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdout.Close()
	f.stdin = stdin
	if err := f.process(work, in, stdout, "ibsim", "-s", net); err != nil {
		return fmt.Errorf("%w: install the Debian package ibsim-utils", err)
	}
	go func() {
		defer close(f.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			f.lines <- s.Text()
		}
	}()
	if _, err = f.until(ctx, ready); err != nil {
		return err
	}
	_, err = f.Console("#") // discards the other messages that ibsim prints at its start
	return err
}

// startManager starts opensm and waits until its log, which it flushes (-d 2), reports that the subnet is up.
func (f *Fabric) startManager(ctx context.Context, work string) error {
	log := filepath.Join(work, "opensm.log")
	out, err := os.Create(filepath.Join(work, "opensm.out"))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := f.process(work, nil, out, "opensm", "-d", "2", "-f", log); err != nil {
		return fmt.Errorf("%w: install the Debian package opensm", err)
	}
	for {
		if text, _ := os.ReadFile(log); strings.Contains(string(text), "SUBNET UP") {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			text, _ := os.ReadFile(log)
			return fmt.Errorf("opensm: %w\n%s", ctx.Err(), text)
		}
	}
}

// process is a started program, for which Wait is called once.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (f *Fabric) process(dir string, in, out *os.File, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
			return err
		}
	}
	p := &process{cmd: child.Command(context.Background(), path, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, f.env
	if in != nil {
		p.cmd.Stdin = in
	}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	f.started = append(f.started, p)
	return nil
}

// Console sends a command to ibsim and returns its reply after the command took effect. An error message of ibsim is
// returned as an error.
func (f *Fabric) Console(command string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(command) > 120 {
		return "", fmt.Errorf("ibsim takes 120 bytes a command: %s", command)
	}
	if _, err := io.WriteString(f.stdin, command+"\nVerbose\n"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	reply, err := f.until(ctx, barrier)
	if err == nil && complaint.MatchString(reply) {
		err = fmt.Errorf("%s: %s", command, strings.TrimSpace(reply))
	}
	return reply, err
}

// complaint matches ibsim's error messages; a dump begins with # too.
var complaint = regexp.MustCompile(`(?m)^(# [^N#]|command '.*' unknown|bad )`)

// until reads ibsim's output up to a line with text.
func (f *Fabric) until(ctx context.Context, text string) (string, error) {
	var read strings.Builder
	for {
		select {
		case line, more := <-f.lines:
			line = strings.ReplaceAll(line, "sim> ", "")
			switch {
			case !more:
				return "", fmt.Errorf("ibsim ended: %s", read.String())
			case strings.Contains(line, text):
				return read.String(), nil
			}
			read.WriteString(line + "\n")
		case <-ctx.Done():
			return "", fmt.Errorf("ibsim does not say %q: %w: %s", text, ctx.Err(), read.String())
		}
	}
}

// Close ends all started programs, the last first, and removes its files.
func (f *Fabric) Close() error {
	for _, p := range slices.Backward(f.started) {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(5 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	return os.RemoveAll(f.dir)
}

// Reap makes ibsim free the slots of killed processes.
func (f *Fabric) Reap() error {
	attached, err := f.Console("Attached")
	if err != nil {
		return err
	}
	for line := range strings.Lines(attached) {
		var client, pid int
		if _, err := fmt.Sscanf(line, "Client %d: pid %d", &client, &pid); err != nil || syscall.Kill(pid, 0) == nil {
			continue
		}
		if _, err := f.Console(fmt.Sprintf("X %d", client)); err != nil {
			return err
		}
	}
	return nil
}
