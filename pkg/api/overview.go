// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"

	"github.com/accelscope/accelscope/pkg/model"
)

// workloadTable answers /api/v1/workloads: who uses what, a row for each workload and device.
func workloadTable(k *Known, _ *http.Request) (any, error) {
	table := k.Recorder.Table(k.At, &k.Facts, &k.Shares)
	return k.inPart(table, len(table.Rows), k.missingDevices())
}

// deviceList answers /api/v1/devices: the HCAs and GPUs with their places in the node.
func deviceList(k *Known, _ *http.Request) (any, error) {
	devices := k.Recorder.Devices(&k.Facts, &k.Shares)
	return k.inPart(devices, len(devices), k.missingDevices())
}

// missingDevices returns why HCAs or GPUs are missing.
func (k *Known) missingDevices() error {
	var why []error
	if k.Facts.HCAs == nil {
		why = append(why, k.missing(false, "rdma"))
	}
	return errors.Join(append(why, k.missingGPUs())...)
}

var errNoHistory = statusError{errors.New("the sensor keeps no history (--no-web.history or --no-web.pages)"), http.StatusNotFound}

// history answers /api/v1/history: the last 15 minutes of devices and workloads.
func history(k *Known, _ *http.Request) (any, error) {
	if !k.Recorder.Enabled() {
		return nil, errNoHistory
	}
	return k.Recorder.History(nil), nil
}

// Check is the state of one thing that the sensor uses.
type Check struct {
	Area   string      `json:"area"` // source, hook, map, device, gpu, fabric, permission, kernel, tier
	Name   string      `json:"name"`
	State  model.State `json:"state"`
	Reason string      `json:"reason,omitempty"`
	Cure   string      `json:"cure,omitempty"`
}

// doctor answers /api/v1/doctor: what accelscope doctor prints about the sensor, without the permissions of the host.
func doctor(k *Known, _ *http.Request) (any, error) {
	checks := []Check{}
	if k.Checks != nil {
		checks = append(checks, k.Checks()...)
	}
	return checks, nil
}

// Kept returns a function that makes handlers of answers of another package, with the limits of the requests here: few
// answers at once, and answers to requests without a query are kept until the next refresh.
func Kept(
	facts Facts, slots Slots, refuse func(http.ResponseWriter, error),
) func(func(http.ResponseWriter, *http.Request, *Known)) http.Handler {
	p := newPages(facts, slots)
	return func(answer func(http.ResponseWriter, *http.Request, *Known)) http.Handler {
		return p.handler(refuse, answer)
	}
}

// StatusOf returns the HTTP status of an error that refused an answer.
func StatusOf(err error) int { return statusOf(err) }
