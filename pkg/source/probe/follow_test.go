// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// TestCloseSensor: closing a sensor cancels its RDMA netlink query and closes it when the query
// returned. A hanging driver delays this by queryLimit, and only once.
func TestCloseSensor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		for name, c := range map[string]struct {
			query func(context.Context)
			want  time.Duration
		}{
			"no query":   {nil, 0},
			"it returns": {func(ctx context.Context) { <-ctx.Done() }, 0},
			"it hangs":   {func(ctx context.Context) { <-ctx.Done(); <-release }, queryLimit},
			"it panics":  {func(context.Context) { panic("driver") }, 0},
		} {
			s := &Source{opts: Options{Logger: zap.NewNop(), Paths: &PathLog{}}, sensor: &sensor{}}
			sensor := s.sensor
			if c.query != nil {
				s.start(t.Context(), c.query)
			}
			synctest.Wait()
			if got, want := s.queryDone(t.Context()), c.query == nil || name == "it panics"; got != want {
				t.Errorf("%s: done %v, want %v", name, got, want)
			}
			begin := time.Now()
			s.closeSensor()
			if took := time.Since(begin); took != c.want || s.sensor != nil || s.query != nil {
				t.Errorf("%s: took %v, want %v; %+v", name, took, c.want, s)
			}
			if p := sensor.call.Start(queryLimit, nil); p != nil {
				t.Errorf("%s: the sensor starts another query", name)
			}
		}
		close(release)
	})
}
