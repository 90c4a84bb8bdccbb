// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/source/link"
)

// newLink makes the source of the links of ports.
func (s *services) newLink() engine.Registration {
	source, err := link.New(link.Options{Sysfs: s.Sysfs, Include: s.include, Exclude: s.exclude, Logger: s.log.Named("link")})
	return register("link", source, err)
}
