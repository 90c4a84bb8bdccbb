// SPDX-License-Identifier: Apache-2.0

// Package returnprobe tries whether return probes can kill processes on this machine: the kernel and the CPU decide. It has a child of
// this program return from a probed function, in each situation in which such processes die on some kernels.
package returnprobe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf/features"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Safety is whether return probes can kill processes on this machine.
type Safety struct {
	// Refused is why no process can be probed.
	Refused error
	// PerProcess: only processes with a shadow stack would die. So each probe is for one
	// process, which has none.
	PerProcess bool
}

// Try makes the experiments. The kernel stays the same, so once is enough for a sensor.
// Where an experiment cannot be made, the kernel's version and the CPU decide.
func Try(ctx context.Context, log *zap.Logger) Safety {
	symbols, err := hook.Symbols()
	if err != nil {
		return Safety{Refused: err}
	}
	rule := func(s situation) error {
		if s == underSeccomp {
			return locate.SafeUnderSeccomp(symbols)
		}
		return locate.SafeWithShadowStacks(symbols)
	}
	begun := time.Now()
	e, err := newExperimenter(features.HaveBPFLinkUprobeMulti() == nil)
	if err != nil {
		return decide(log, rule, false, func(situation) error { return err }, func() error { return err })
	}
	defer e.close()
	try := func(s situation) error { return e.try(ctx, s) }
	result := decide(log, rule, e.multi && runtime.GOARCH == "amd64", try, e.filtersProcesses)
	log.Debug("tried return probes", zap.Bool("per process", result.PerProcess), zap.NamedError("refused", result.Refused),
		zap.Duration("took", time.Since(begun)))
	return result
}

// decide decides by the experiments: try of experimenter, and filtersProcesses; by rule where a situation could not be
// tried. multi: a probe can be for one process, and the kernel shows which have a shadow stack.
func decide(
	log *zap.Logger, rule func(situation) error, multi bool, try func(situation) error, filtersProcesses func() error,
) Safety {
	if err := kills(log, underSeccomp, try, rule); err != nil {
		return Safety{Refused: err}
	}
	err := kills(log, withShadowStack, try, rule)
	if err == nil {
		return Safety{}
	}
	one := errors.New("that needs uprobe_multi links, and x86-64")
	if multi {
		one = filtersProcesses()
	}
	if one != nil {
		return Safety{Refused: fmt.Errorf("%w, and others cannot be probed alone: %w", locate.ErrShadowStack, one)}
	}
	log.Info("only processes without a shadow stack are probed on the data path", zap.Error(err))
	return Safety{PerProcess: true}
}

// kills returns an error if return probes kill processes in a situation, or rule's error if the situation could not be tried.
func kills(log *zap.Logger, s situation, try, rule func(situation) error) error {
	err := try(s)
	switch {
	case err == nil, errors.Is(err, errNoShadowStack):
		return nil
	case errors.Is(err, errDied):
		return fmt.Errorf("%w: return probes kill processes %s: %w", model.ErrUnsupported, s, err)
	}
	verdict := rule(s)
	log.Warn("return probes could not be tried, the version of the kernel decides", zap.String("situation", string(s)),
		zap.NamedError("verdict", verdict), zap.NamedError("reason", err))
	return verdict
}
