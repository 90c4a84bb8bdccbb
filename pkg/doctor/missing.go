// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// missing adds a row for each device that is missing.
func (r *Report) missing(list []model.MissingDevice) {
	for _, m := range list {
		if m.Excused {
			continue
		}
		area, id, look := "device", m.ID, "look for its PCI address in lspci and dmesg"
		switch m.Kind {
		case model.KindGPU:
			area = "gpu"
		case model.KindModule:
			id, look = strconv.Quote(m.Serial), fmt.Sprintf("look at the cage of %s, port %d, and at ethtool -m", m.Name, m.Port)
		}
		reason := fmt.Sprintf("missing: %s at %s was last listed at %s", m.ID, m.Slot, m.Seen.Format(time.DateTime))
		if m.Seen.IsZero() {
			reason = fmt.Sprintf("missing: %s has no driver, beside equal GPUs that have one", m.Slot)
		}
		r.add(area, cmp.Or(m.Name, m.ID), model.StateFailed, reason,
			look+"; if it was removed on purpose: accelscope inventory accept "+id)
	}
}
