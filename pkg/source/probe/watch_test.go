// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestWatch: devices are listed soon after the last of several announcements, and every 2 s if announcements may be missing. Where they
// cannot be missing, devices are listed once a minute, and 2 s after a read of the maps. The class directory is a file, so each attempt to
// list devices fails and is logged.
func TestWatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "infiniband")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		s := &Source{
			opts: Options{Logger: zap.New(core)}, devices: newListing(file), uverbs: newListing(file), reads: make(chan struct{}, 1),
		}
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), 130*time.Second)
		defer stop()
		changed := make(chan struct{}, 1)
		go func() {
			time.Sleep(time.Second)
			for range 3 { // a driver adds one device after the other
				changed <- struct{}{}
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Until(began.Add(70 * time.Second)))
			for range 3 {
				s.reads <- struct{}{}
				time.Sleep(500 * time.Millisecond)
			}
		}()
		s.watch(ctx, changed, func(poll time.Duration) time.Duration {
			if time.Since(began) < 3*time.Second {
				return poll
			}
			return time.Minute
		})
		var got []time.Duration
		for _, entry := range logs.All() {
			got = append(got, entry.Time.Sub(began).Round(time.Millisecond))
		}
		ms := time.Millisecond
		if want := []time.Duration{500 * ms, 1700 * ms, 3700 * ms, 63700 * ms, 72000 * ms}; !slices.Equal(got, want) {
			t.Errorf("listed after %v, want %v", got, want)
		}
	})
}
