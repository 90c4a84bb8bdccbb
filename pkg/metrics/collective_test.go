// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

func collectiveFacts() model.Snapshot {
	operation := func(name string, n uint64) model.CommunicatorOperation {
		return model.CommunicatorOperation{Operation: name, Launches: model.Launches{Count: n, Bytes: 4096 * n}}
	}
	world := model.Communicator{
		Cgroup: 101, Library: "nccl", Version: "2.28.9", Key: "5b0c4be9f3c1a2d7", Rank: "0", Ranks: 2, Since: time.Unix(1700000000, 0),
		LastLaunch: time.UnixMilli(1700000100250), Late: model.Some(0.125),
		Operations: []model.CommunicatorOperation{operation("all_reduce", 100), operation("broadcast", 2)},
	}
	other := world
	other.Cgroup, other.Rank, other.Late, other.Operations = 102, "1", model.Some(2.5), []model.CommunicatorOperation{operation("all_reduce", 99)}
	split := model.Communicator{Cgroup: 102, Library: "nccl", Version: "2.28.9", Key: "90ab", Parent: world.Key, Rank: "parent-1"}
	late := model.CollectiveKey{Library: "nccl", Communicator: model.LateCommunicators, Operation: "send"}
	return model.Snapshot{
		Communicators: []model.Communicator{world, other, split},
		Collectives:   []model.Series[model.CollectiveKey, model.Launches]{{Cgroup: 102, Key: late, Value: model.Launches{Count: 7, Bytes: 70}}},
		CollectiveCoverage: []model.CollectiveCoverage{
			{Cgroup: 101}, {Cgroup: 102}, {Cgroup: 102, Gap: model.CollectiveLate}, {Cgroup: 102, Gap: model.CollectiveGraphs},
		},
	}
}

// TestCollectiveBudget: a node with 8 ranks in 4 communicators each has at most 450 series.
func TestCollectiveBudget(t *testing.T) {
	facts := model.Snapshot{Collectives: []model.Series[model.CollectiveKey, model.Launches]{}}
	for rank := range 8 {
		id := model.CgroupID(rank + 1)
		facts.CollectiveCoverage = append(facts.CollectiveCoverage, model.CollectiveCoverage{Cgroup: id})
		for c := range 4 {
			f := model.Communicator{
				Cgroup: id, Library: "nccl", Version: "2.28.9", Key: fmt.Sprint("key", c), Rank: fmt.Sprint(rank), Ranks: 8, LastLaunch: time.Unix(1, 0),
				Late: model.Some(1),
			}
			for _, name := range []string{"all_gather", "all_reduce", "broadcast", "reduce_scatter", "send"} {
				f.Operations = append(f.Operations, model.CommunicatorOperation{Operation: name, Launches: model.Launches{Count: 1}})
			}
			facts.Communicators = append(facts.Communicators, f)
		}
	}
	c := newCollector(setup{Sources: append(crowd(8, model.Snapshot{}), engine.Registration{Source: &fake{name: "collective", facts: facts}})})
	defer c.Close() //nolint:errcheck // nothing to lose
	_, _, text := seriesOf(t, c)
	n := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "container_collective_") {
			n++
		}
	}
	if want := 8*4*(3+2*5) + 8; n != want || n > 450 {
		t.Errorf("%d series, want %d, at most 450", n, want)
	}
}
