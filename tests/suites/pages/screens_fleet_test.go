// SPDX-License-Identifier: Apache-2.0

//go:build screens

package pages

import (
	"os"
	"testing"
)

func init() { foreign = "eval" } // the pictures are for the documentation

// TestScreensFleet takes the pictures of the pages of all nodes, a job and a node.
func TestScreensFleet(t *testing.T) {
	site := fleetSite(t)
	first := open(t, site, 1280, 900)
	views := fleetViews(first, site)
	job := site + "/job/ml/" + first.job("JobSet/llama-0") // a member is behind
	for _, scheme := range []string{"light", "dark"} {
		for name, shot := range map[string]struct {
			width int64
			url   string
		}{
			"fleet": {1280, site + "/"}, "fleet-phone": {390, site + "/"}, "fleet-errors": {1280, views[1]}, "fleet-node": {1280, views[2]},
			"fleet-job": {1280, job},
		} {
			b := open(t, site, shot.width, 900)
			b.scheme(scheme)
			b.visit(shot.url)
			b.shoot(os.Getenv("ACCELSCOPE_SCREENS"), name+"-"+scheme, shot.width, 2200)
		}
	}
}
