// SPDX-License-Identifier: Apache-2.0

package returnprobe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/features"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

func startExperimenter(t *testing.T) *experimenter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	e, err := newExperimenter(features.HaveBPFLinkUprobeMulti() == nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return e
}

// TestExperiments makes the experiments on this kernel. The kernels of the tests (6.1, 6.12.14 and later, 6.18) have safe
// return probes.
func TestExperiments(t *testing.T) {
	e := startExperimenter(t)
	begun := time.Now()
	if err := e.try(t.Context(), underSeccomp); err != nil {
		t.Errorf("under seccomp: %v", err)
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	err = e.try(t.Context(), withShadowStack)
	if has := strings.Contains(string(cpuinfo), " user_shstk "); has && err != nil || !has && !errors.Is(err, errNoShadowStack) {
		t.Errorf("with a shadow stack: %v; the CPU has them: %v", err, has)
	}
	t.Logf("with a shadow stack: %v; both took %v", err, time.Since(begun))
	if e.multi {
		if err := e.filtersProcesses(); err != nil {
			t.Error(err)
		}
	}
	result := Try(t.Context(), zap.NewNop())
	if result.Refused != nil || result.PerProcess {
		t.Errorf("%+v", result)
	}
}

// TestInOtherThread: the function does not run in the first thread of the process.
func TestInOtherThread(t *testing.T) {
	for range 20 {
		inOtherThread(func() {
			if syscall.Gettid() == os.Getpid() {
				t.Error("in the first thread")
			}
			runtime.Gosched()
		})
	}
}

// TestDecide: what follows from the experiments, with results that no machine of ours has. The rule, which is the version of
// the kernel (RHEL 10) and the flags of the CPU (Ubuntu 24.04), does not count where the experiments could be made.
func TestDecide(t *testing.T) {
	died := fmt.Errorf("%w: signal: segmentation fault", errDied)
	failed := errors.New("operation not permitted")
	byRule := fmt.Errorf("%w: by the version of the kernel", model.ErrUnsupported)
	for name, c := range map[string]struct {
		seccomp, shadow, filters error
		rule                     error // of the version and the CPU
		single                   bool  // no uprobe_multi
		refused                  error
		perProcess               bool
	}{
		"safe":                               {rule: byRule},
		"no shadow stacks":                   {shadow: errNoShadowStack, rule: byRule},
		"seccomp":                            {seccomp: died, refused: errDied},
		"shadow stacks":                      {shadow: died, perProcess: true},
		"shadow stacks, no uprobe_multi":     {shadow: died, single: true, refused: locate.ErrShadowStack},
		"shadow stacks, filters fail":        {shadow: died, filters: failed, refused: failed},
		"seccomp not tried":                  {seccomp: failed},
		"seccomp not tried, refused by rule": {seccomp: failed, rule: byRule, refused: byRule},
		"stacks not tried":                   {shadow: failed},
		"stacks not tried, refused by rule":  {shadow: failed, rule: byRule, perProcess: true},
	} {
		try := func(s situation) error {
			return map[situation]error{underSeccomp: c.seccomp, withShadowStack: c.shadow}[s]
		}
		rule := func(situation) error { return c.rule }
		got := decide(zap.NewNop(), rule, !c.single, try, func() error { return c.filters })
		if !errors.Is(got.Refused, c.refused) || (got.Refused != nil) != (c.refused != nil) || got.PerProcess != c.perProcess {
			t.Errorf("%s: %+v, want %v %v", name, got, c.refused, c.perProcess)
		}
		if got.Refused != nil && !errors.Is(got.Refused, model.ErrUnsupported) {
			t.Errorf("%s: %v is not unsupported", name, got.Refused)
		}
	}
}

// TestOutcome: a child that somebody killed, or that was too slow, shows nothing.
func TestOutcome(t *testing.T) {
	for name, err := range map[string]error{
		"not started": os.ErrPermission, "slow": fmt.Errorf("%w: killed", context.DeadlineExceeded),
		"the sensor ends": fmt.Errorf("%w: killed", context.Canceled),
	} {
		if got := outcome(underSeccomp, err); got == nil || errors.Is(got, errDied) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
