// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// A sensor that goes ends what it asks RDMA netlink for, and is closed when that has
// returned. A driver that hangs delays that by askLimit, and only once.
func TestDismiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		for name, c := range map[string]struct {
			ask  func(context.Context)
			want time.Duration
		}{
			"nothing is asked": {nil, 0},
			"it returns":       {func(ctx context.Context) { <-ctx.Done() }, 0},
			"it hangs":         {func(ctx context.Context) { <-ctx.Done(); <-release }, askLimit},
			"it panics":        {func(context.Context) { panic("driver") }, 0},
		} {
			s := &Source{opts: Options{Logger: zap.NewNop(), Paths: &PathLog{}}, sensor: &sensor{}}
			sensor := s.sensor
			if c.ask != nil {
				s.start(t.Context(), c.ask)
			}
			synctest.Wait()
			if got, want := s.answered(t.Context()), c.ask == nil || name == "it panics"; got != want {
				t.Errorf("%s: answered %v, want %v", name, got, want)
			}
			begin := time.Now()
			s.dismiss()
			if took := time.Since(begin); took != c.want || s.sensor != nil || s.asking != nil {
				t.Errorf("%s: took %v, want %v; %+v", name, took, c.want, s)
			}
			if p := sensor.call.Start(askLimit, nil); p != nil {
				t.Errorf("%s: the sensor asks on", name)
			}
		}
		close(release)
	})
}
