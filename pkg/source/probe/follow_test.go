// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
)

// TestRetry: hooks that could not be attached are tried again after a growing pause, and at once when a device is
// added.
func TestRetry(t *testing.T) {
	sysfs := t.TempDir()
	device := func(name string) {
		if err := os.MkdirAll(filepath.Join(sysfs, "class/infiniband", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	device("mlx5_0")
	s := &Source{
		opts:    Options{Sysfs: sysfs, Tier: "none", Logger: zap.NewNop(), Paths: &PathLog{}},
		devices: newListing(filepath.Join(sysfs, "class/infiniband")), uverbs: newListing(filepath.Join(sysfs, "class/infiniband_verbs")),
	}
	attempt := func(due bool) {
		if due {
			s.retry = hook.Retry{}
			for range 3 {
				s.retry.Failed(time.Now().Add(-time.Hour))
			}
		}
		s.hooks, s.failed = nil, nil
		s.follow(t.Context())
	}
	attempt(false)
	if s.failed == nil {
		t.Fatal("hooks without a tier are attached")
	}
	if attempt(false); s.failed != nil {
		t.Error("tried again at once")
	}
	if attempt(true); s.failed == nil || !s.retry.Waiting(time.Now().Add(3*time.Minute)) {
		t.Errorf("after the third pause: %v, %+v, want a fourth, of 4 minutes", s.failed, s.retry)
	}
	device("mlx5_1")
	if attempt(false); s.failed == nil {
		t.Error("not tried when there is another device")
	}
}

// TestCloseSensor: closing a sensor cancels its RDMA netlink query, and the sensor is closed when the query has
// returned. A hanging driver delays this once, by queryLimit.
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
