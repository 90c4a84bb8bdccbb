// SPDX-License-Identifier: Apache-2.0

//go:build screens

package pages

import (
	"os"
	"testing"
)

func init() { foreign = "eval" } // the pictures are for the documentation

// TestScreensFleet takes the pictures of the page of all nodes.
func TestScreensFleet(t *testing.T) {
	site := fleetSite(t)
	for _, scheme := range []string{"light", "dark"} {
		for name, width := range map[string]int64{"fleet": 1280, "fleet-phone": 390} {
			b := open(t, site, width, 900)
			b.scheme(scheme)
			b.ready(site)
			b.shoot(os.Getenv("ACCELSCOPE_SCREENS"), name+"-"+scheme, width, 2200)
		}
	}
}
