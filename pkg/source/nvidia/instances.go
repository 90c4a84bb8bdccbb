// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// A MIG instance with an open handle cannot be destroyed, and NVML keeps handles until its process ends. So a second child, which runs
// one round and ends, reads the list, memory, errors and processes of the instances. The first child uses handles of whole GPUs only. It
// takes the samples of GPM counters, which compare two points in time, through the GPU and with the number of the instance.

// instancesRetry is the pause after a failed round of instances.
const instancesRetry = time.Minute

// instancesPause is the pause after a round of instances, as a multiple of its duration: starting a child and opening the library cost
// more than the round.
const instancesPause = 4

// instanceReader reads the MIG instances of GPUs in children of their own.
type instanceReader struct {
	mu      sync.Mutex
	pause   time.Duration  // after the last round
	last    model.Snapshot // of the last round
	at      time.Time      // time of last
	next    time.Time      // start of the next round
	of      []string       // addresses of the GPUs of the last round that began
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// begin starts a round in the background if no round is running, and a round is due or the last round lacked a GPU: at the start, and when
// MIG is enabled, the instances of some GPUs become known later.
func (r *instanceReader) begin(st start, open func(context.Context, start) (session, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lacked := func(address string) bool { return !slices.Contains(r.of, address) }
	if r.cancel != nil || time.Now().Before(r.next) && !slices.ContainsFunc(st.Addresses, lacked) {
		return
	}
	r.of = st.Addresses
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	safely.Go(&r.running, "nvidia", func() {
		defer cancel()
		begun := time.Now()
		snapshot, err := readOnce(ctx, st, open)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pause = max(st.Options.Interval, instancesPause*time.Since(begun))
		r.cancel, r.next = nil, time.Now().Add(r.pause)
		switch {
		case err == nil:
			r.last, r.at = snapshot, time.Now()
		case ctx.Err() == nil:
			r.next = time.Now().Add(instancesRetry)
			st.children.ended(err)
			st.logger.Warn("reading MIG instances", zap.Error(err))
		}
	})
}

// stop ends a round in progress, and waits until it has closed everything.
func (r *instanceReader) stop() {
	r.mu.Lock()
	if r.cancel != nil {
		r.cancel()
	}
	r.mu.Unlock()
	r.running.Wait()
	r.mu.Lock()
	r.next = time.Time{}
	r.mu.Unlock()
}

// readOnce opens a session, reads it once, and ends it.
func readOnce(ctx context.Context, st start, open func(context.Context, start) (session, error)) (model.Snapshot, error) {
	ended := make(chan error, 1)
	st.uses = nil // the first child has the rounds
	st.notify = func(why error) {
		if why != nil {
			select {
			case ended <- why:
			default:
			}
		}
	}
	s, err := open(ctx, st)
	if err != nil {
		return model.Snapshot{}, err
	}
	defer s.end()
	for end := time.Now().Add(st.HangLimit); time.Now().Before(end); {
		snapshot, err := s.read(ctx) // takes as long as the round, or answerTimeout
		if err == nil {
			return snapshot, nil
		}
		select {
		case why := <-ended:
			return snapshot, why
		case <-ctx.Done():
			return snapshot, ctx.Err()
		default:
		}
	}
	return model.Snapshot{}, &hungError{}
}

// add adds the instances of the last round to a reading of their GPUs, unless the next one is later than limit.
func (r *instanceReader) add(s *model.Snapshot, xids *wire.XIDs, limit time.Duration) {
	r.mu.Lock()
	last, at, pause := r.last, r.at, r.pause
	r.mu.Unlock()
	if time.Since(at) > 3*pause+limit {
		last = model.Snapshot{}
	}
	engines := map[[2]string][]model.Figure{} // by UUID of the GPU and number of the instance
	for _, g := range s.GPUs {
		if g.UUID == "" {
			engines[[2]string{g.Parent, g.Instance}] = g.Engines
		}
	}
	var gpus []model.GPU
	for _, g := range s.GPUs {
		unread := g.Modes == nil // only the identity is known
		switch {
		case g.UUID == "":
			continue
		case !unread && g.Modes["mig"] != "enabled":
			gpus = append(gpus, g)
			continue
		}
		i := slices.IndexFunc(last.GPUs, func(o model.GPU) bool { return o.UUID == g.UUID })
		if i >= 0 && !unread {
			whole := last.GPUs[i]
			g.Memory, g.Listed, g.Unlisted = whole.Memory, whole.Listed, whole.Unlisted
			g.Problems = withECC(g.Problems, whole.Problems)
		}
		gpus = append(gpus, g)
		for _, part := range last.GPUs {
			if part.Parent != g.UUID {
				continue
			}
			if unread {
				part = wire.Identity(part)
				part.Suspended = g.Suspended
			} else if part.Engines = nil; !shared(part, last.GPUs) {
				part.Engines = engines[[2]string{g.UUID, part.Instance}]
			}
			part.Problems, part.XIDs = g.Problems, xids.OfGPU(&part)
			gpus = append(gpus, part)
			for _, p := range last.GPUProcesses {
				if p.GPU == part.UUID && !unread {
					s.GPUProcesses = append(s.GPUProcesses, p)
				}
			}
		}
	}
	if s.GPUs != nil {
		s.GPUs = append([]model.GPU{}, gpus...)
	}
	if s.GPUProcesses == nil && last.GPUProcesses != nil {
		s.GPUProcesses = []model.GPUProcess{}
	}
}

// shared reports whether several compute instances share the GPU instance of a part: its GPM counters count for all.
func shared(part model.GPU, parts []model.GPU) bool {
	return slices.ContainsFunc(parts, func(o model.GPU) bool {
		return o.Parent == part.Parent && o.Instance == part.Instance && o.ComputeInstance != part.ComputeInstance
	})
}

// withECC replaces the condition of memory errors, which with MIG only the instances report.
func withECC(problems, of []model.GPUCondition) []model.GPUCondition {
	isECC := func(c model.GPUCondition) bool { return c.Name == model.ProblemECC }
	i := slices.IndexFunc(of, isECC)
	if i < 0 || problems == nil {
		return problems
	}
	return append(slices.DeleteFunc(slices.Clone(problems), isECC), of[i])
}
