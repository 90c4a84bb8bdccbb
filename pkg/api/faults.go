// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Fault is an error of a GPU or an HCA in the kernel log, or the end of an error. Unknown values are empty or 0.
type Fault struct {
	ID          uint64            `json:"id"`
	Time        time.Time         `json:"time"`
	Last        time.Time         `json:"last"`     // the last of the equal faults
	Repeated    uint64            `json:"repeated"` // number of equal faults after the first one
	Driver      model.FaultDriver `json:"driver"`
	Code        string            `json:"code"`
	PCIAddress  string            `json:"pci_address"`
	GPU         string            `json:"gpu_id"`
	UUID        string            `json:"uuid"`
	GPUInstance string            `json:"gpu_instance"`
	Severity    string            `json:"severity"`
	Device      string            `json:"device"` // of an HCA
	identity.Owner
	PID       int    `json:"pid"`
	Process   string `json:"process"`
	Earlier   bool   `json:"before_start"`
	Recovered bool   `json:"recovered"`
	Text      string `json:"text"`
}

// faultHistory answers /api/v1/faults: the last faults of the node, of one workload (?workload=), on one device (?device=, a
// UUID, a PCI address or the name of an HCA) or all, oldest first.
func faultHistory(k *Known, r *http.Request) (any, error) {
	query := r.URL.Query()
	workload, device := query.Get("workload"), query.Get("device")
	out := []Fault{}
	for i := range k.Shares.FaultHistory {
		f := &k.Shares.FaultHistory[i]
		if workload != "" && workload != f.Owner.Workload {
			continue
		}
		if device != "" && device != f.FaultDevice.UUID && device != f.PCIAddress && device != f.HCA {
			continue
		}
		out = append(out, faultOf(f))
	}
	return k.inPart(out, len(k.Shares.FaultHistory), k.missing(k.Shares.FaultHistory != nil, "kernellog"))
}

func faultOf(f *attribution.FaultRecord) Fault {
	return Fault{
		ID: f.ID, Time: f.Time.UTC(), Last: f.Last.UTC(), Repeated: f.Repeated,
		Driver: f.Driver, Code: f.Code, PCIAddress: f.PCIAddress,
		GPU: f.GPU, UUID: f.FaultDevice.UUID, GPUInstance: f.GPUInstance, Severity: string(f.Severity), Device: f.HCA,
		Owner: f.Owner, PID: f.PID, Process: f.Process, Earlier: f.Earlier, Recovered: f.Recovered, Text: f.Text,
	}
}
