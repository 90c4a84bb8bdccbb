// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/taint/cluster"
)

const (
	readAgain = 10 * time.Minute // all nodes, for marks that others changed
	deadline  = time.Minute      // for all requests of a step
)

// Options configure a Loop.
type Options struct {
	Prometheus Prometheus
	Cluster    *cluster.Cluster
	Limits     Limits
	Interval   time.Duration
	Effect     string // of DeviceTaintRules
	DryRun     bool   // only log
	Log        *zap.Logger
}

// Check returns an error if the limits contradict each other.
func (o *Options) Check() error {
	switch {
	case o.Interval < time.Second || o.Interval > o.Limits.Gap:
		return fmt.Errorf("--interval=%v: want from 1s to %v", o.Interval, o.Limits.Gap)
	case o.Limits.Set < 0 || o.Limits.Clear <= o.Limits.Set:
		return fmt.Errorf("--taint.clear-after=%v: want more than --taint.set-after=%v", o.Limits.Clear, o.Limits.Set)
	case o.Limits.MaxNodes < 1:
		return fmt.Errorf("--taint.max-nodes=%d: want at least 1", o.Limits.MaxNodes)
	}
	return nil
}

// Loop keeps the marks of a cluster.
type Loop struct {
	Options
	machine *Machine
	now     func() time.Time

	read    time.Time // when marks were read; zero: they are unknown
	marks   map[Subject][]string
	since   map[Subject]time.Time // of conditions
	devices *cluster.Devices      // nil: no DeviceTaintRules
	rules   map[Subject]cluster.DeviceTaint

	said map[string]string // the last message about each thing that lasts
}

// NewLoop returns a loop. It sends no request.
func NewLoop(o Options) *Loop {
	return &Loop{Options: o, machine: NewMachine(o.Limits), now: time.Now, said: map[string]string{}}
}

// Run keeps the marks until ctx ends. Marks remain.
func (l *Loop) Run(ctx context.Context) {
	ticker := time.NewTicker(l.Interval)
	defer ticker.Stop()
	for {
		l.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (l *Loop) step(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	o, problems, err := observe(ctx, l.Prometheus, l.now())
	if err != nil {
		problems = []string{"Prometheus: " + err.Error()}
	}
	l.say("prometheus", "nothing is removed, or nothing changed", strings.Join(problems, "; "))
	left, err := l.readMarks(ctx)
	l.say("cluster", "the marks of the cluster are unknown, and nothing changes", text(err))
	if err != nil {
		o = nil
	}
	l.apply(ctx, left) // first: they would count as marked nodes
	changes, refused := l.machine.Step(o, l.marks)
	l.say("refused", fmt.Sprintf("not marked: %d nodes are (--taint.max-nodes)", l.Limits.MaxNodes), names(refused))
	l.apply(ctx, changes)
}

// readMarks reads the marks of the cluster if they are not known, and returns the removals of the marks of nodes that have left it. A dry
// run keeps the marks that it would have set.
func (l *Loop) readMarks(ctx context.Context) (left []Change, err error) {
	if !l.read.IsZero() && (l.DryRun || l.now().Sub(l.read) < readAgain) {
		return nil, nil
	}
	l.read = time.Time{}
	conditions, err := l.Cluster.Conditions(ctx, string(GPU), string(RDMA))
	if err != nil {
		return nil, err
	}
	devices, err := l.Cluster.Devices(ctx)
	if err != nil {
		return nil, err
	}
	var taints []cluster.DeviceTaint
	if devices != nil {
		if taints, err = l.Cluster.DeviceTaints(ctx, devices); err != nil {
			return nil, err
		}
	}
	l.read, l.devices = l.now(), devices
	clear(l.said)
	l.marks, l.since, l.rules = map[Subject][]string{}, map[Subject]time.Time{}, map[Subject]cluster.DeviceTaint{}
	for node, list := range conditions {
		for _, c := range list {
			for _, kind := range []Kind{GPU, RDMA} {
				if c.Type == cluster.ConditionType(string(kind)) {
					s := Subject{Node: node, Kind: kind}
					l.marks[s], l.since[s] = c.Verdicts, c.Since
				}
			}
		}
	}
	for _, t := range taints {
		s := Subject{Node: t.Node, Kind: GPU, UUID: t.UUID}
		l.marks[s], l.rules[s] = t.Verdicts, t
		if _, exists := conditions[t.Node]; !exists {
			left = append(left, Change{Subject: s})
		}
	}
	return left, nil
}

// apply changes the marks, one request after the other. A change that fails is forgotten: the machine wants it again.
func (l *Loop) apply(ctx context.Context, changes []Change) {
	for _, c := range changes {
		if c.UUID != "" && l.devices == nil {
			continue
		}
		var err error
		if !l.DryRun {
			err = l.write(ctx, c)
		}
		l.say(c.String(), "a mark was not changed", text(err))
		if err != nil {
			continue
		}
		action := "mark set"
		if len(c.Verdicts) > 0 {
			l.marks[c.Subject] = c.Verdicts
		} else {
			action = "mark removed"
			delete(l.marks, c.Subject)
		}
		l.Log.Info(action, zap.String("node", c.Node), zap.String("kind", string(c.Kind)), zap.String("device", c.UUID),
			zap.Strings("verdicts", c.Verdicts), zap.Bool("dry_run", l.DryRun))
	}
}

func (l *Loop) write(ctx context.Context, c Change) error {
	if c.UUID == "" {
		return l.writeConditions(ctx, c)
	}
	existing, exists := l.rules[c.Subject]
	switch {
	case len(c.Verdicts) == 0:
		if err := l.Cluster.Untaint(ctx, l.devices, existing); err != nil {
			return err
		}
		delete(l.rules, c.Subject)
	case !exists: // an existing rule keeps the verdicts for which it was made
		made, err := l.Cluster.Taint(ctx, l.devices, c.Node, c.UUID, l.Effect, c.Verdicts)
		if err != nil {
			return err
		}
		l.rules[c.Subject] = made
	}
	return nil
}

// writeConditions writes all conditions of a node. A node that is gone has no conditions.
func (l *Loop) writeConditions(ctx context.Context, c Change) error {
	var list []cluster.Condition
	since := l.since[c.Subject]
	if since.IsZero() {
		since = l.now()
	}
	for _, kind := range []Kind{GPU, RDMA} {
		s := Subject{Node: c.Node, Kind: kind}
		one := cluster.Condition{Type: cluster.ConditionType(string(kind)), Verdicts: l.marks[s], Since: l.since[s]}
		if s == c.Subject {
			one.Verdicts, one.Since = c.Verdicts, since
		}
		if len(one.Verdicts) > 0 {
			list = append(list, one)
		}
	}
	err := l.Cluster.SetConditions(ctx, c.Node, list)
	if errors.Is(err, cluster.ErrNotFound) && len(c.Verdicts) == 0 {
		err = nil
	}
	if err == nil {
		l.since[c.Subject] = since
	}
	if len(c.Verdicts) == 0 {
		delete(l.since, c.Subject)
	}
	return err
}

// say logs what lasts when it begins, changes or ends.
func (l *Loop) say(about, what, text string) {
	if l.said[about] == text {
		return
	}
	if text == "" {
		delete(l.said, about)
		l.Log.Info("over: " + what)
		return
	}
	l.said[about] = text
	l.Log.Warn(what, zap.String("why", text))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func names(all []Subject) string {
	list := make([]string, len(all))
	for i, s := range all {
		list[i] = s.String()
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
