// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/source/link"
)

// linkFlags select what is read of links.
type linkFlags struct {
	Modules          bool   `name:"link.modules" negatable:"" default:"true" help:"Read transceivers and cables (needs CAP_NET_ADMIN)."`
	ModuleLanes      bool   `name:"link.module-lanes" help:"Export each lane's bias and optical power."`
	ModuleThresholds bool   `name:"link.module-thresholds" help:"Export modules' alarm and warning thresholds."`
	Mlxlink          string `name:"link.mlxlink" placeholder:"PATH" help:"mlxlink or mstlink for mlx5 bit errors. Default: disabled."`
}

// newLink makes the source of the links of ports.
func (s *services) newLink() engine.Registration {
	source, err := link.New(link.Options{
		Sysfs: s.Sysfs, Include: s.include, Exclude: s.exclude, Logger: s.log.Named("link"),
		Mlxlink: s.Mlxlink, Module: link.ModuleDetail{Off: !s.Modules, Lanes: s.ModuleLanes, Thresholds: s.ModuleThresholds},
	})
	return register("link", source, err)
}
