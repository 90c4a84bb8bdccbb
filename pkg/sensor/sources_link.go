// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/source/link"
)

// newLink makes the source of the links of ports.
func (s *services) newLink() engine.Registration {
	source, err := link.New(link.Options{
		Sysfs: s.Sysfs, Include: s.include, Exclude: s.exclude, Hotplug: s.hotplug, Logger: s.log.Named("link"),
		Mlxlink: s.Mlxlink, Module: link.ModuleDetail{Off: !s.Modules, Lanes: s.ModuleLanes, Thresholds: s.ModuleThresholds},
	})
	return register("link", source, err)
}
