// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
)

// whileScraping scrapes the sensor all the time during a change. Each scrape must pass check, and no counter may fall.
func whileScraping(t *testing.T, check func(families) error, change func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	scrapes := 0
	go func() {
		last := map[string]float64{}
		for {
			f, err := scrape(ctx)
			if ctx.Err() != nil {
				result <- nil
				return
			}
			if err == nil {
				err = errors.Join(check(f), f.fell(last))
			}
			if err != nil {
				result <- fmt.Errorf("scrape %d: %w", scrapes, err)
				return
			}
			scrapes++
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	defer func() {
		cancel()
		if err := <-result; err != nil {
			t.Error(err)
		}
		t.Logf("%d scrapes", scrapes)
	}()
	change()
}

// steady is whileScraping for a change through which all running containers keep their names.
func steady(t *testing.T, change func()) {
	t.Helper()
	same(t, "containers", running.running, shown)
	before, err := running.running(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whileScraping(t, func(f families) error {
		if diff := cmp.Diff(before, f.shown()); diff != "" {
			return fmt.Errorf("containers (-before +now)\n%s", diff)
		}
		return nil
	}, change)
}

// fell returns an error if a counter is below its last value. It then replaces the last values.
func (f families) fell(last map[string]float64) (err error) {
	for name, family := range f {
		if family.GetType() != dto.MetricType_COUNTER {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := make([]string, 0, len(m.GetLabel()))
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key, value := name+"{"+strings.Join(labels, ",")+"}", m.GetCounter().GetValue()
			if value < last[key] {
				err = errors.Join(err, fmt.Errorf("%s fell from %v to %v", key, last[key], value))
			}
			last[key] = value
		}
	}
	return err
}

// restartKubelet replaces the kubelet by one with these lines in its configuration. Plugins register again, as they do when the
// kubelet's socket is new.
func restartKubelet(t *testing.T, plugins []*devicePlugin, lines ...string) {
	t.Helper()
	running.kubelet.stop(syscall.SIGTERM)
	for _, p := range plugins {
		p.stop()
	}
	if err := running.startKubelet(t.Context(), lines...); err != nil {
		t.Fatal(err)
	}
	for _, p := range plugins {
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
