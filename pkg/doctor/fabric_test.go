// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// Reading a large fabric takes longer than the deadline of a scrape: doctor waits longer, with a limit, but not for a
// fabric that cannot be read.
func TestDoctorAwaitsFabric(t *testing.T) {
	for name, tt := range map[string]struct {
		takes   time.Duration
		err     error
		waits   time.Duration // minimum; the maximum is a second more
		state   model.State
		patient bool
	}{
		"quick":   {takes: 100 * time.Millisecond, waits: 100 * time.Millisecond, state: model.StateOK, patient: true},
		"slow":    {takes: 20 * time.Second, waits: 20 * time.Second, state: model.StateOK, patient: true},
		"hangs":   {takes: time.Hour, waits: fabricTimeout, state: model.StateStuck, patient: true},
		"fails":   {takes: 5 * time.Second, err: model.ErrUnsupported, waits: 5 * time.Second, state: model.StateUnsupported, patient: true},
		"ctrl-C":  {takes: time.Hour, waits: 2 * time.Second, state: model.StateStuck}, // the first refresh is not interrupted
		"no ibsw": {err: fmt.Errorf("no tools: %w", model.ErrAbsent), state: model.StateAbsent, patient: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := startEngine(t, engine.Options{}, engine.Registration{
					Source: slowSource{takes: tt.takes, err: tt.err}, Interval: time.Hour, Deadline: time.Hour,
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if !tt.patient {
					cancel()
				}
				began := time.Now()
				awaitFabric(ctx, e)
				if took := time.Since(began); took < tt.waits || took > tt.waits+2*time.Second {
					t.Errorf("waited %s, want %s", took, tt.waits)
				}
				if s := e.Refresh().States[0]; s.State != tt.state {
					t.Errorf("%+v, want %s", s, tt.state)
				}
				_ = e.Close() // a source that hangs is abandoned
			})
		})
	}
}

// slowSource takes this long for a read, unless it is closed.
type slowSource struct {
	takes time.Duration
	err   error
}

func (s slowSource) Name() string { return "fabric" }

func (s slowSource) Read(ctx context.Context) (model.Snapshot, error) {
	select {
	case <-ctx.Done():
		return model.Snapshot{}, ctx.Err()
	case <-time.After(s.takes):
		return model.Snapshot{}, s.err
	}
}

func (s slowSource) Close() error { return nil }

func TestDoctorFabric(t *testing.T) {
	f := &model.Fabric{Nodes: []model.FabricNode{
		{GUID: "1", Kind: model.FabricSwitch, Name: "leaf", Ports: []model.FabricPort{
			{Number: 1, Peer: &model.FabricPeer{GUID: "2", Port: 1}}, {Number: 2},
		}},
		{GUID: "2", Kind: model.FabricCA, Name: "node", Error: "not \x1b[31masked", Ports: []model.FabricPort{
			{Number: 1, Peer: &model.FabricPeer{GUID: "1", Port: 1}},
		}},
	}}
	for i := range 12 {
		f.Nodes = append(f.Nodes, model.FabricNode{GUID: fmt.Sprint("0x", i), Kind: model.FabricSwitch, Error: "timed out\nagain"})
	}
	r := &Report{}
	r.fabric(nil)
	r.fabric(f)
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	want := []string{"AREA    NAME            STATE   REASON", "fabric  topology        ok      switches: 13, adapters: 1, links: 1"}
	for i := range maxSilent {
		want = append(want, fmt.Sprintf("fabric  0x%d             failed  timed out; again", i))
	}
	want = append(want,
		"fabric  other switches  failed  2 more do not report their counters", "fabric  adapters        failed  1 of 1: not ?[31masked")
	got, _, _ := strings.Cut(out.String(), "\n\n")
	if d := cmp.Diff(want, strings.Split(got, "\n")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// startEngine returns an engine that reads the sources until the test ends.
func startEngine(t *testing.T, o engine.Options, sources ...engine.Registration) *engine.Engine {
	t.Helper()
	e := engine.New(o)
	for _, r := range sources {
		e.Add(r)
	}
	e.Start()
	t.Cleanup(func() { _ = e.Close() })
	return e
}
