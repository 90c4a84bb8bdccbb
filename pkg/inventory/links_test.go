// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// linked returns GPUs with links in these states: "111 110", - for an unknown state.
func linked(kind model.LinkKind, remote func(gpu, link int) string, states ...string) []model.GPU {
	var gpus []model.GPU
	for n, text := range states {
		address := "0000:" + string(rune('1'+n)) + "0:00.0"
		g := gpu("GPU-"+string(rune('a'+n)), address, "")
		for k, c := range text {
			l := model.GPULink{Kind: kind, Number: k, Remote: remote(n, k)}
			if c != '-' {
				l.Up = model.Some(float64(c - '0'))
			}
			g.Links = append(g.Links, l)
		}
		if len(g.Links) > 0 {
			g.Links = append(g.Links, model.GPULink{Kind: kind, Number: model.AllLinks})
		}
		gpus = append(gpus, g)
	}
	return gpus
}

func switches(_, link int) string { return "0000:0" + string(rune('1'+link%4)) + ":00.0" }

// pairs are bridges between the GPUs 0 and 1, 2 and 3.
func pairs(gpu, _ int) string { return "0000:" + string(rune('1'+(gpu^1))) + "0:00.0" }

// down returns the problem of each GPU: 1, 0, or - without a result.
func (n *node) down() string {
	n.t.Helper()
	text := ""
	for _, g := range n.refresh().GPUs {
		state := "-"
		for _, p := range g.Problems {
			if p.Name == model.ProblemLinkDown {
				state = map[bool]string{true: "1", false: "0"}[p.Active]
			}
		}
		text += state
	}
	return text
}

// TestFewerLinks: a GPU with fewer links up than others of its model has a problem, even if no link was ever up.
func TestFewerLinks(t *testing.T) {
	other := func(gpus []model.GPU) []model.GPU {
		gpus[0].Name = "A30"
		return gpus
	}
	mig := func(gpus []model.GPU) []model.GPU {
		gpus[0].Modes = map[string]string{"mig": "enabled"}
		return gpus
	}
	nameless := func(gpus []model.GPU) []model.GPU {
		for n := range gpus {
			gpus[n].Name = ""
		}
		return gpus
	}
	failing := func(gpus []model.GPU) []model.GPU {
		gpus[0].Problems = nil
		return gpus
	}
	for name, c := range map[string]struct {
		gpus []model.GPU
		want string
	}{
		"all down":               {linked(model.NVLink, switches, "000", "111", "111"), "100"},
		"one down":               {linked(model.NVLink, switches, "111", "101", "111"), "010"},
		"one is not listed":      {linked(model.NVLink, switches, "111", "11", "111"), "010"},
		"XGMI":                   {linked(model.XGMI, switches, "1111", "1110"), "01"},
		"all alike":              {linked(model.NVLink, switches, "000", "000"), "00"},
		"all alike, some down":   {linked(model.NVLink, switches, "110", "011"), "00"},
		"alone":                  {linked(model.NVLink, switches, "000"), "0"},
		"no links":               {linked(model.NVLink, switches, "", "111"), "-0"},
		"not known":              {linked(model.NVLink, switches, "---", "111"), "-0"},
		"another model":          {other(linked(model.NVLink, switches, "000", "111")), "00"},
		"of no known model":      {nameless(linked(model.NVLink, switches, "000", "111")), "00"},
		"MIG":                    {mig(linked(model.NVLink, switches, "000", "111")), "-0"},
		"unreadable":             {failing(linked(model.NVLink, switches, "000", "111")), "-0"},
		"a card without bridge":  {linked(model.NVLink, pairs, "11", "11", "00"), "000"},
		"a bridge that is loose": {linked(model.NVLink, pairs, "11", "11", "10"), "001"},
		"direct, one without":    {linked(model.NVLink, func(_, l int) string { return pairs(l, 0) }, "11", "11", "00"), "001"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.facts.GPUs = c.gpus
			if got := n.down(); got != c.want {
				t.Errorf("link_down %s, want %s", got, c.want)
			}
		})
	}
}

// TestLinkFails: a link that was up is missed when all links of its kind fail together, after a restart, and until it
// is accepted.
func TestLinkFails(t *testing.T) {
	for _, kind := range []model.LinkKind{model.NVLink, model.XGMI} {
		n := newNode(t)
		n.facts.GPUs = linked(kind, switches, "110", "110")
		if got := n.down(); got != "00" {
			t.Errorf("link_down %s of links that were never up", got)
		}
		for range 2 {
			n.facts.GPUs = linked(kind, switches, "100", "100")
			if got := n.down(); got != "11" {
				t.Errorf("link_down %s", got)
			}
			n.restart()
		}
		n.facts.GPUs = linked(kind, switches, "-00", "")
		if got := n.down(); got != "1-" {
			t.Errorf("link_down %s of links whose state is not known", got)
		}
		n.facts.GPUs = linked(kind, switches, "100", "100")
		n.down()
		want := []string{"gpu H100 GPU-a has links that are down: 1"}
		if diff := cmp.Diff(want, n.i.Accept(n.now, []string{"GPU-a"})); diff != "" {
			t.Error(diff)
		}
		if got := n.down(); got != "01" {
			t.Errorf("link_down %s", got)
		}
		n.restart()
		if got := n.down(); got != "01" {
			t.Errorf("link_down %s after a restart", got)
		}
	}
}

// TestFewerAccepted: a GPU with fewer links is accepted, also after a restart, and missed again with still fewer links.
func TestFewerAccepted(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs = linked(model.NVLink, switches, "100", "111", "111")
	n.down()
	want := []string{"gpu H100 GPU-a has fewer links that are up than other GPUs: 1"}
	if diff := cmp.Diff(want, n.i.Accept(n.now, nil)); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		if got := n.down(); got != "000" {
			t.Errorf("link_down %s", got)
		}
		n.restart()
	}
	n.facts.GPUs = linked(model.NVLink, switches, "000", "111", "111")
	if got := n.down(); got != "100" {
		t.Errorf("link_down %s of a GPU that lost the last one", got)
	}
}

// TestParts: parts of a GPU have the GPU's problem, and the source's lists do not change.
func TestParts(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs = linked(model.XGMI, switches, "10", "11")
	part := gpu("GPU-a:1", "0000:10:00.0", "")
	part.Parent = "GPU-a"
	n.facts.GPUs = append(n.facts.GPUs, part)
	if got := n.down(); got != "101" {
		t.Errorf("link_down %s", got)
	}
	for _, g := range n.facts.GPUs {
		if len(g.Problems) != 0 {
			t.Errorf("the source's %+v", g.Problems)
		}
	}
}
