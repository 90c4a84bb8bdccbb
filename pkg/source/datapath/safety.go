// SPDX-License-Identifier: Apache-2.0

package datapath

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

// safety is whether return probes can kill processes on this machine.
type safety struct {
	// refused is why no process can be probed.
	refused error
	// perProcess: only processes with a shadow stack would die. So each probe is for one
	// process, which has none.
	perProcess bool
}

// maxProbedAlone is the number of processes that are probed one by one. Each has some
// thirty links, and each probe asks all links of its place whether they are for the process.
const maxProbedAlone = 256

// errProbedAlone is why further processes are not probed.
var errProbedAlone = fmt.Errorf("%w: more than %d processes, and each needs probes of its own on this kernel",
	model.ErrUnsupported, maxProbedAlone)

// maxFilesOfOwner bounds the files that an owner alone has probed: a process may map any number of copies of a provider. All pods of a node
// may be one owner.
const maxFilesOfOwner = 256

// errFilesOfOwner is why a process of an owner is not probed.
var errFilesOfOwner = fmt.Errorf("%w: the processes of its owner map %d provider files", model.ErrUnsupported, maxFilesOfOwner)

// determineSafety makes the experiments, once for a sensor: the kernel stays the same.
// Where an experiment cannot be made, the kernel's version and the CPU decide.
func determineSafety(ctx context.Context, log *zap.Logger) safety {
	symbols, err := hook.Symbols()
	if err != nil {
		return safety{refused: err}
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
	log.Debug("tried return probes", zap.Bool("per process", result.perProcess), zap.NamedError("refused", result.refused),
		zap.Duration("took", time.Since(begun)))
	return result
}

// ReturnProbes returns an error if return probes can kill processes on this machine. perProcess: only those with a shadow
// stack would die, so each probe must be for one process, which has none.
func ReturnProbes(ctx context.Context, log *zap.Logger) (perProcess bool, err error) {
	s := determineSafety(ctx, log)
	return s.perProcess, s.refused
}

// decide decides by the experiments: try of experimenter, and filtersProcesses; by rule where a situation could not be
// tried. multi: a probe can be for one process, and the kernel shows which have a shadow stack.
func decide(
	log *zap.Logger, rule func(situation) error, multi bool, try func(situation) error, filtersProcesses func() error,
) safety {
	if err := kills(log, underSeccomp, try, rule); err != nil {
		return safety{refused: err}
	}
	err := kills(log, withShadowStack, try, rule)
	if err == nil {
		return safety{}
	}
	one := errors.New("that needs uprobe_multi links, and x86-64")
	if multi {
		one = filtersProcesses()
	}
	if one != nil {
		return safety{refused: fmt.Errorf("%w, and others cannot be probed alone: %w", locate.ErrShadowStack, one)}
	}
	log.Info("only processes without a shadow stack are probed on the data path", zap.Error(err))
	return safety{perProcess: true}
}

// kills returns an error if return probes kill processes in a situation, or that of rule if the situation could not be tried.
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
