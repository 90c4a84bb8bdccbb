// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
)

// driverTask is a task that does not return from an ioctl of a GPU driver. Unknown values are empty or 0.
type driverTask struct {
	Driver   string    `json:"driver"`
	PID      int       `json:"pid"`
	TID      int       `json:"tid"`
	Process  string    `json:"process"`
	Since    time.Time `json:"since"`
	Request  string    `json:"request"`  // the second argument of ioctl(2): 0xc020642a
	Type     string    `json:"type"`     // _IOC_TYPE: 0x64
	Number   string    `json:"number"`   // _IOC_NR: 0x2a
	Function string    `json:"function"` // kernel function in which the thread sleeps
	// The thread that holds the lock for which the task waits.
	HolderPID     int    `json:"holder_pid"`
	HolderTID     int    `json:"holder_tid"`
	HolderProcess string `json:"holder_process"`

	identity.Owner
}

// driverTasks answers /api/v1/gpu-driver-tasks: the stuck tasks of the node by driver, the oldest ioctl first.
func driverTasks(k *Known, _ *http.Request) (any, error) {
	out := []driverTask{}
	for i := range k.Shares.DriverTasks {
		out = append(out, driverTaskOf(&k.Shares.DriverTasks[i], k))
	}
	return k.inPart(out, len(out), k.missing(k.Shares.DriverTasks != nil, "gpudriver"))
}

func driverTaskOf(t *attribution.DriverTask, k *Known) driverTask {
	hex := func(format string, n uint32) string { return fmt.Sprintf(format, n) }
	return driverTask{
		Driver: t.Driver, PID: t.PID, TID: t.TID, Process: t.Process, Since: t.Since.UTC(), Function: t.Function,
		Request: hex("0x%08x", t.Request), Type: hex("0x%02x", t.Request>>8&0xff), Number: hex("0x%02x", t.Request&0xff),
		HolderPID: t.HolderPID, HolderTID: t.HolderTID, HolderProcess: t.HolderProcess,
		Owner: k.Shares.Owners[t.Owner],
	}
}
