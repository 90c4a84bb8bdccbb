// SPDX-License-Identifier: Apache-2.0

package library

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// load loads the programs of all functions, once: most nodes with GPUs run no process with these libraries.
func (p *Prober) load() {
	if p.refused != nil {
		return
	}
	p.refused = make([]error, len(p.spec.Functions))
	err := p.spec.Object.Load(p.spec.Programs, func() {
		for i, f := range p.spec.Functions {
			if err := p.spec.Load(i); err != nil {
				p.refused[i] = fmt.Errorf("loading the programs of %s: %w", f.Name, err)
			}
		}
	})
	for i := range p.refused {
		p.refused[i] = cmp.Or(err, p.refused[i])
	}
	if !slices.Contains(p.refused, nil) {
		p.failed = hook.Unsupported(p.refused[0])
	}
}

// Err returns why nothing is probed, or why a process is not.
func (p *Prober) Err() error {
	var refused error
	for _, of := range p.Processes {
		refused = cmp.Or(refused, of.refused)
	}
	return cmp.Or(p.failed, p.unknown, refused)
}

// Hooks returns the state of the probes of each function in all files.
func (p *Prober) Hooks() []model.Hook {
	hooks := make([]model.Hook, len(p.spec.Functions))
	for i := range hooks {
		hooks[i] = p.hookOf(i)
	}
	return hooks
}

func (p *Prober) hookOf(i int) model.Hook {
	f := &p.spec.Functions[i]
	if p.refused != nil && p.refused[i] != nil {
		err, state := p.refused[i], model.StateFailed
		if hook.Refused(err) {
			state = model.StateUnsupported
		}
		return model.Hook{Name: f.Name, State: state, Reason: err.Error(), Err: err}
	}
	h := model.Hook{
		Name: f.Name, State: model.StateAbsent,
		Reason: fmt.Sprintf("no process that has a GPU open maps a %s with this function", cmp.Or(f.Library, "library")),
	}
	for _, file := range p.Files {
		if file.needed() && file.Excluded {
			h.Reason = "a process that maps the library must not have probes"
		}
		if !file.wanted() {
			continue
		}
		switch attached, err := file.stateOf(i); {
		case err != nil:
			return model.Hook{Name: f.Name, State: model.StateFailed, Reason: err.Error(), Err: err}
		case attached:
			h = model.Hook{Name: f.Name, Tier: "uprobe", State: model.StateOK}
		}
	}
	return h
}
