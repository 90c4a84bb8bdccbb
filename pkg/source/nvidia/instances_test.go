// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// emptySession is a session without devices.
type emptySession struct{ session }

func (emptySession) read(context.Context) (model.Snapshot, error) { return model.Snapshot{}, nil }
func (emptySession) end()                                         {}

// TestInstancesOfLateGPU: a GPU whose MIG mode is known after a round of the instances of another GPU has begun does not wait for
// the interval.
func TestInstancesOfLateGPU(t *testing.T) {
	var opened [][]string
	open := func(_ context.Context, st start) (session, error) {
		opened = append(opened, st.Addresses)
		return emptySession{}, nil
	}
	var r instanceReader
	defer r.stop()
	for i, c := range []struct {
		addresses []string
		rounds    int
	}{
		{[]string{"b"}, 1},
		{[]string{"b"}, 1},
		{[]string{"a", "b"}, 2},
		{[]string{"a", "b"}, 2},
		{[]string{"a"}, 2}, // the other one hangs
		{[]string{"a", "b"}, 2},
	} {
		r.begin(start{
			Start:  wire.Start{Options: wire.Options{Interval: time.Hour}, Addresses: c.addresses, HangLimit: time.Minute},
			logger: zap.NewNop(),
		}, open)
		r.running.Wait()
		if len(opened) != c.rounds {
			t.Errorf("step %d: rounds of %v, want %d", i, opened, c.rounds)
		}
	}
	if !slices.Equal(opened[len(opened)-1], []string{"a", "b"}) {
		t.Errorf("rounds of %v", opened)
	}
}
