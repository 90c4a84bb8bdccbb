// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// fabricTimeout limits how long doctor waits for a fabric, which may be large.
	fabricTimeout = time.Minute
	// maxSilent is the maximum number of switches without counters that are listed by name.
	maxSilent = 10
)

// awaitFabric waits until the fabric was read once, which may take longer than a
// scrape.
func awaitFabric(ctx context.Context, e *engine.Engine) {
	ctx, cancel := context.WithTimeout(ctx, fabricTimeout)
	defer cancel()
	for {
		waiting := false
		for _, s := range e.Refresh().States {
			waiting = waiting || s.Source == "fabric" && s.State == model.StateStuck && s.Age < 0
		}
		if !waiting {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// fabric adds the size of the fabric and the nodes that do not report counters.
func (r *Report) fabric(f *model.Fabric) {
	if f == nil {
		return
	}
	count, silent := map[string]int{}, map[string][]*model.FabricNode{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		count[n.Kind]++
		if n.Error != "" {
			silent[n.Kind] = append(silent[n.Kind], n)
		}
	}
	switches, adapters := silent[model.FabricSwitch], silent[model.FabricCA]
	r.add("fabric", "topology", model.StateOK, fmt.Sprintf("switches: %d, adapters: %d, links: %d",
		count[model.FabricSwitch], count[model.FabricCA], len(f.Links())), "")
	for i, n := range switches {
		if i == maxSilent {
			r.add("fabric", "other switches", model.StateFailed, fmt.Sprintf("%d more do not report their counters", len(switches)-i), "")
			break
		}
		r.add("fabric", cmp.Or(n.Name, n.GUID), model.StateFailed, n.Error, "")
	}
	if len(adapters) > 0 { // one command reads all of them: mostly all fail, or a few that hang
		r.add("fabric", "adapters", model.StateFailed,
			fmt.Sprintf("%d of %d: %s", len(adapters), count[model.FabricCA], adapters[0].Error), "")
	}
}
