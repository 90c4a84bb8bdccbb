// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// Series are prepared once, and are removed with their workloads.
func TestLabelsAreKeptAndDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdma, probe := &fake{name: "rdma", facts: nodeHCAs()}, &fake{name: "probe"}
		c := newCollector(setup{
			Sources: []engine.Registration{{Source: rdma}, {Source: probe}, {Source: names(nodeNames())}},
			Compat:  CompatSets(),
		})
		defer c.Close() //nolint:errcheck // nothing to lose
		size := func() [4]int {
			kept := c.build.Kept()
			return [4]int{kept.Sets, kept.Owners, kept.Names, len(c.view.hw.byName)}
		}
		first := mustGather(t, c)
		idle := size()

		time.Sleep(time.Second)
		second := mustGather(t, c)
		if &first[0].Metric[0].Label[0] != &second[0].Metric[0].Label[0] {
			t.Error("the labels of a series were made twice")
		}
		if first[0].Metric[0] == second[0].Metric[0] {
			t.Error("a series that a scrape may still hold was used again")
		}

		probe.facts = probeFacts()
		time.Sleep(time.Second)
		mustGather(t, c)
		if busy := size(); busy[0] <= idle[0] || busy[1] <= idle[1] {
			t.Errorf("%v label sets and owners with workloads, %v without", busy, idle)
		}
		probe.facts = model.Snapshot{}
		time.Sleep(time.Second)
		mustGather(t, c)
		if got := size(); got != idle {
			t.Errorf("%v are left of the removed workloads, want %v", got, idle)
		}
	})
}

// An info series has more labels than its key. A change of these labels must be visible.
func TestInfoChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdma := &fake{name: "rdma", facts: nodeHCAs()}
		c := newCollector(setup{Sources: []engine.Registration{{Source: rdma}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		mustGather(t, c)
		rdma.facts = nodeHCAs()
		rdma.facts.HCAs[0].NodeDesc = "renamed"
		time.Sleep(time.Second)
		families := mustGather(t, c)
		if _, ok := value(families, "infiniband_device_info", "device=mlx5_0", "node_desc=renamed"); !ok {
			t.Error("the new description does not show")
		}
		if _, ok := value(families, "infiniband_device_info", "node_desc=gpu01 mlx5_0"); ok {
			t.Error("the old description still shows")
		}
	})
}
