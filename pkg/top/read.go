// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/overview"
)

// A reading is what a sensor answered at one moment.
type reading struct {
	at        time.Time
	workloads overview.Table
	devices   []overview.Device
	verdicts  api.VerdictList
	stalled   []api.Peer // remote ends of stalled queue pairs
	missing   []string   // reasons why answers, or parts of them, are missing
}

// read requests one reading. Only a sensor that does not answer with workloads, and does not give a reason, is an error.
func read(ctx context.Context, sensor *client.Client) (*reading, error) {
	r := &reading{at: time.Now()}
	part, err := sensor.Data(ctx, api.WorkloadsPath, &r.workloads)
	if refused, ok := errors.AsType[*client.Refused](err); err != nil && (!ok || refused.Status != http.StatusServiceUnavailable) {
		return nil, err
	}
	r.lacks(part, err)
	r.lacks(sensor.Data(ctx, api.DevicesPath, &r.devices))
	r.lacks(sensor.Data(ctx, api.VerdictsPath, &r.verdicts))
	if slices.ContainsFunc(r.workloads.Rows, stalls) {
		body, err := sensor.Get(ctx, api.PeersPath, url.Values{"stalled": {"true"}})
		if err == nil {
			err = json.Unmarshal(body, &r.stalled)
		}
		r.lacks("", err)
	}
	return r, nil
}

// lacks adds the reason why part of an answer is missing, or all of it.
func (r *reading) lacks(part string, err error) {
	if refused, ok := errors.AsType[*client.Refused](err); ok {
		part = refused.Reason
	} else if err != nil {
		part = err.Error()
	}
	if part != "" && !slices.Contains(r.missing, part) {
		r.missing = append(r.missing, part)
	}
}

// hasHCA reports whether some figures are rates: only HCAs have them.
func (r *reading) hasHCA() bool {
	return slices.ContainsFunc(r.workloads.Rows, func(u overview.Row) bool { return u.Kind == overview.HCA })
}

// rated reports whether the rates are current, not a mean since somebody last read the sensor.
func (r *reading) rated() bool {
	seconds := r.workloads.RatesSeconds
	return !r.hasHCA() || seconds != nil && *seconds <= time.Minute.Seconds()
}
