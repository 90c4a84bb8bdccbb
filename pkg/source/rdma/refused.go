// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// maxLogged bounds the refused names that are logged.
const maxLogged = 256

// refusedState returns the state of the refused names, if any. Each name is logged once. A device with a refused name
// is not read.
func (s *Source) refusedState(readings []*reading) []model.DeviceState {
	all := slices.Clone(s.refused)
	for _, r := range readings {
		if r == nil {
			continue
		}
		for _, text := range r.refused {
			all = append(all, r.hca.Name+": "+text)
		}
	}
	if len(all) == 0 {
		return nil
	}
	for _, text := range all {
		if !s.logged[text] && len(s.logged) < maxLogged {
			s.logged[text] = true
			s.opt.Logger.Warn("a name is refused", zap.String("name", text))
		}
	}
	state := model.StateUnsupported
	if len(s.refused) > 0 {
		state = model.StateFailed
	}
	reason := strings.Join(all[:min(len(all), sysfs.MaxRefused)], "; ")
	if n := len(all) - sysfs.MaxRefused; n > 0 {
		reason += fmt.Sprintf("; and %d more", n)
	}
	return []model.DeviceState{{Source: s.Name(), Device: "names", State: state, Reason: "refused: " + reason}}
}
