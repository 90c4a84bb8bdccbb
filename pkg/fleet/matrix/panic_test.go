// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"net/http"
	"testing"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

type panicking struct {
	host string
	http.RoundTripper
}

func (p panicking) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == p.host {
		panic("a test")
	}
	return p.RoundTripper.RoundTrip(r)
}

// TestPanic: a panic while a sensor's answer is read reaches the request that asks, whose server survives it. For others nothing is known.
func TestPanic(t *testing.T) {
	s := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.1")}}
	r, good, bad := reader(t, ""), serve(t, s.handler()), serve(t, s.handler())
	r.client = &http.Client{Transport: panicking{bad, http.DefaultTransport}}
	of := []fleet.Member{member("ml/a", good), member("ml/b", bad)}
	if safely.Try(func() { r.Job(job, of) }) == nil {
		t.Error("no panic")
	}
	m := r.Job(job, of)
	for _, n := range m.Nodes { // they were asked
		if n != (Node{Name: n.Name, Problem: "no answer"}) {
			t.Errorf("%+v", n)
		}
	}
	if len(m.Nodes) != 2 || len(m.NotAsked) > 0 || m.Said.Silent != 2 || m.Said.Uncompared != 2 || m.Pairs == nil || r.held.Load() != 0 {
		t.Errorf("%+v, %d addresses are held", m, r.held.Load())
	}
}
