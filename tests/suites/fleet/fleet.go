// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// step is the time span of a node's samples in a request. Pods begin and end between steps.
const step = 5 * time.Minute

// store keeps samples and evaluates rules: a Prometheus, or what replaces it in a large fleet (stores_test.go).
type store interface {
	// send writes samples of a node; of none: outOfNodes.
	send(ctx context.Context, node int, body []byte) error
	// settle makes queries see what was sent.
	settle(ctx context.Context) error
	// load evaluates the rule files that match a pattern from now on.
	load(ctx context.Context, pattern string) error
	stop()
}

// outOfNodes stands for a node in store.send: the samples are of recording rules.
const outOfNodes = -1

// fleet is a Prometheus with the series of nodes.
type fleet struct {
	options
	api   // of the store
	store store
	dir   string // temporary files
	root  string // of the repository
	nodes []*node
	begin time.Time // of the past
	next  time.Time // first sample that is not yet written
	live  chan error
	end   context.CancelFunc // ends the writer

	samples int
	filled  time.Duration // time to write the past
	wg      sync.WaitGroup
}

// start fills a Prometheus.
func start(ctx context.Context, o options) (_ *fleet, err error) {
	if o.minutes < 10 || o.minutes > 60 || o.nodes < 1 || o.jobs < 1 {
		return nil, errors.New("at least one node, in total and of a job, and 10 to 60 minutes: Prometheus accepts no older samples")
	}
	f := &fleet{options: o, live: make(chan error, 1), end: func() {}}
	if f.root, err = root(ctx); err != nil {
		return nil, err
	}
	if f.dir, err = os.MkdirTemp("", "fleet"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	if err := f.template(ctx); err != nil {
		return nil, err
	}
	if f.data == "" {
		f.data = filepath.Join(f.dir, "data")
	}
	f.api = api{"http://" + f.listen}
	if f.store, err = f.open(ctx, f); err != nil {
		return nil, err
	}
	if err := f.past(ctx); err != nil {
		return nil, err
	}
	if err := f.store.settle(ctx); err != nil {
		return nil, err
	}
	f.progress("wrote %d samples of the past, now those of the recording rules", f.samples)
	writing, end := context.WithCancel(ctx)
	f.end = end
	f.wg.Go(func() { f.live <- f.present(writing) })
	if err := f.record(ctx); err != nil {
		return nil, err
	}
	f.progress("loading the rules")
	return f, f.load(ctx)
}

func (f *fleet) progress(format string, args ...any) {
	if !f.quiet {
		fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...) //nolint:errcheck // a terminal
	}
}

func (f *fleet) stop() {
	f.end()
	f.wg.Wait()
	if f.store != nil {
		f.store.stop()
	}
	_ = os.RemoveAll(f.dir) // its own temporary files
}

// template makes the nodes from the recorded scrape.
func (f *fleet) template(ctx context.Context) error {
	keep, err := filter(filepath.Join(f.root, "deploy/prometheus/scale/agent.yml"))
	if err != nil {
		return err
	}
	file := f.scrape
	if file == "" {
		if err := recordScrapes(ctx, f.dir); err != nil {
			return err
		}
		file = filepath.Join(f.dir, "small.prom")
		if f.all {
			file = filepath.Join(f.dir, "full.prom")
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if f.all {
		keep = everything
	}
	templates, err := parse(text, keep)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	end := time.Now().Truncate(interval)
	f.begin = end.Add(-time.Duration(f.minutes) * time.Minute)
	f.next = f.begin
	for i := range f.options.nodes {
		f.nodes = append(f.nodes, newNode(i, f.jobs, f.begin, end, templates))
	}
	return nil
}

// past writes all samples up to now.
func (f *fleet) past(ctx context.Context) error {
	began := time.Now()
	for time.Since(f.next) > interval {
		if err := f.write(ctx, min(step, time.Since(f.next).Truncate(interval))); err != nil {
			return err
		}
	}
	f.filled = time.Since(began)
	return nil
}

// present writes samples as time passes.
func (f *fleet) present(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(f.next)):
		}
		if err := f.write(ctx, interval); err != nil {
			return err
		}
	}
}

// write writes the next samples of all nodes.
func (f *fleet) write(ctx context.Context, length time.Duration) error {
	if rest := step - f.next.Sub(f.begin)%step; length > rest {
		length = rest
	}
	var times []time.Time
	for d := time.Duration(0); d < length; d += interval {
		times = append(times, f.next.Add(d))
	}
	for i, n := range f.nodes {
		body, samples := n.request(times)
		if err := f.store.send(ctx, i, body); err != nil {
			return err
		}
		f.samples += samples
	}
	f.next = f.next.Add(length)
	return nil
}

// load loads the rules, which Prometheus evaluates from then on.
func (f *fleet) load(ctx context.Context) error {
	pattern := filepath.Join(f.root, "deploy/prometheus/rules/*.yaml")
	if f.every > 0 {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := f.rules(file)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(f.dir, "rules-"+filepath.Base(file)), f.faster(text), 0o600); err != nil {
				return err
			}
		}
		pattern = filepath.Join(f.dir, "rules-*.yaml")
	}
	if err := f.store.load(ctx, pattern); err != nil {
		return err
	}
	return f.awaitRules(ctx)
}

// jobsGroup is the rule group that counts hours of unused GPUs.
const jobsGroup = "accelscope-jobs"

var holds = regexp.MustCompile(`(?m)^( +for: \d+)m\b`)

// rules reads a rule file, without the lines that the store cannot evaluate.
func (f *fleet) rules(file string) (string, error) {
	text, err := os.ReadFile(file)
	if f.unknown != nil {
		text = f.unknown.ReplaceAll(text, nil)
	}
	return string(text), err
}

// faster returns a rule file with another evaluation interval and other durations of alerts.
func (f *fleet) faster(text string) []byte {
	groups := strings.Split(holds.ReplaceAllString(text, "${1}s"), "  - name: ")
	for i, g := range groups {
		if f.minutely && strings.HasPrefix(g, jobsGroup+"\n") {
			continue
		}
		g = strings.ReplaceAll(g, "    interval: 1m\n", "")
		groups[i] = strings.Replace(g, "    rules:\n", fmt.Sprintf("    interval: %v\n    rules:\n", f.every), 1)
	}
	return []byte(strings.Join(groups, "  - name: "))
}
