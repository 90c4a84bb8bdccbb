// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// downing reports a port that is down from the second reading on.
type downing struct{ reads int }

func (d *downing) Name() string { return "rdma" }
func (d *downing) Close() error { return nil }

func (d *downing) Read(context.Context) (model.Snapshot, error) {
	state := "ACTIVE"
	if d.reads++; d.reads > 1 {
		state = "DOWN"
	}
	return model.Snapshot{HCAs: []model.HCA{{Name: "mlx5_0", Ports: []model.Port{{Number: 1, State: state}}}}}, nil
}

// TestVerdicts: each refresh is judged together with earlier refreshes. A panic loses only the verdicts of its refresh.
func TestVerdicts(t *testing.T) {
	e := New(Options{Reuse: time.Nanosecond})
	e.Add(Registration{Source: &downing{}})
	e.Start()
	for _, want := range []string{"NothingWrong", "RDMAPortDown"} {
		time.Sleep(time.Millisecond)
		if got := e.Refresh().Verdicts.Verdicts; len(got) != 1 || got[0].Name != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	impossible := &Refresh{At: time.Now(), Shares: attribution.Attribution{Outstanding: []attribution.OutstandingShare{{Owner: 7, Stalled: 1}}}}
	e.judgeFacts(impossible)
	if r := e.Refresh(); len(impossible.Verdicts.Verdicts) != 0 || r.Panics != 1 || len(r.Verdicts.Verdicts) != 1 {
		t.Errorf("after a panic: %+v, %d panics, %+v", impossible.Verdicts, r.Panics, r.Verdicts)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
