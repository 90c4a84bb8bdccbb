// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// loaded returns a number for each module that is loaded or built in. Reloading a module changes its number: sysfs
// numbers its directories in the order in which they are made.
func loaded(sysfs string) map[string]uint64 {
	numbers := map[string]uint64{}
	for _, f := range functions {
		var st unix.Stat_t
		if _, ok := numbers[f.module]; !ok && unix.Stat(filepath.Join(sysfs, "module", f.module), &st) == nil {
			numbers[f.module] = st.Ino
		}
	}
	return numbers
}

// follow attaches the hooks of newly loaded drivers, and releases the hooks of removed drivers. While nothing changes,
// it costs one system call per module.
func (s *Source) follow() {
	now := loaded(s.o.Sysfs)
	s.mu.Lock()
	made, failed := s.sensor != nil, s.retry.Pending()
	if s.retry.Waiting(time.Now()) && (!made || maps.Equal(now, s.modules)) || !made && len(now) == 0 {
		s.mu.Unlock()
		return
	}
	var change []int // of functions
	for i, f := range functions {
		if now[f.module] != s.modules[f.module] || failed && s.hooks[i].State == model.StateFailed {
			change = append(change, i)
		}
	}
	s.mu.Unlock()
	if len(change) == 0 || !made && !s.load(now) {
		return
	}
	s.update(change, now)
}

// load loads the programs. It takes some time, so the lock is not held.
func (s *Source) load(now map[string]uint64) bool {
	sensor, err := newSensor(s.o)
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.failed != nil && err != nil && s.failed.Error() == err.Error()
	s.sensor, s.failed = sensor, err
	if err != nil {
		s.retry.Failed(time.Now())
		for i, f := range functions {
			if s.hooks[i] = f.state(model.StateAbsent, f.notLoaded()); now[f.module] != 0 {
				s.hooks[i] = f.refused(err)
			}
		}
		if !again {
			s.o.Logger.Warn("ioctls of GPU drivers are not measured", zap.Error(err))
		}
	}
	return err == nil
}

// update attaches and releases the hooks of these functions, after a change of their modules. It takes some time, so
// the lock is not held.
func (s *Source) update(change []int, now map[string]uint64) {
	symbols, err := hook.Symbols()
	s.mu.Lock()
	var former []link.Link
	for _, i := range change {
		former = append(former, s.sensor.take(functions[i].name)...)
	}
	s.mu.Unlock()
	hook.CloseAll(former)
	hooks, links := make([]model.Hook, len(change)), make([][]link.Link, len(change))
	failed := false
	for n, i := range change {
		hooks[n], links[n] = s.attach(functions[i], now, symbols, err)
		if hooks[n].State == model.StateFailed {
			failed = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.modules = now; failed {
		s.retry.Failed(time.Now())
	} else {
		s.retry = hook.Retry{}
	}
	for n, i := range change {
		s.hooks[i], s.sensor.links[functions[i].name] = hooks[n], links[n]
	}
	s.o.Logger.Info("hooks of GPU drivers", zap.String("attached", strings.Join(s.sensor.attached(), " ")))
}

func (s *Source) attach(f function, now map[string]uint64, symbols map[string]bool, symbolsErr error) (model.Hook, []link.Link) {
	switch {
	case now[f.module] == 0:
		return f.state(model.StateAbsent, f.notLoaded()), nil
	case symbolsErr != nil:
		return f.refused(symbolsErr), nil
	case !symbols[f.name]:
		return f.state(model.StateUnsupported, "this "+f.module+" has no function "+f.name), nil
	}
	links, err := s.sensor.attach(f)
	if err != nil {
		return f.refused(err), nil
	}
	return f.state(model.StateOK, ""), links
}

func (f function) refused(err error) model.Hook {
	state := model.StateFailed
	if errors.Is(err, model.ErrUnsupported) {
		state = model.StateUnsupported
	}
	h := f.state(state, err.Error())
	h.Err = err
	return h
}

func (f function) state(state model.State, reason string) model.Hook {
	h := model.Hook{Name: f.name, State: state, Reason: reason}
	if state == model.StateOK {
		h.Tier = hook.Kprobe
	}
	return h
}

func (f function) notLoaded() string { return "the module " + f.module + " is not loaded" }
