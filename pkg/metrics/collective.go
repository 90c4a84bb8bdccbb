// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var collectiveNotes = []string{
	"Needs `--collector.collective`. [What is seen, and what is not](../docs/collectives.md).",
	"`communicator` is a keyed hash, the same in all ranks of all nodes with the same `--collective.key-file`. `late`: made before the " +
		"probes. `other`: beyond 16 communicators of a workload, or 512 ranks of communicators of the node.",
	"`rank`: `parent-3` is the rank in the communicator from which it was made, where its own rank is unknown.",
	"`container_collective_bytes_total` is the number of elements in the call times the size of their type, not what the network moves.",
	"`container_collective_late_seconds_total`: [when it is absent or too small](../docs/collectives.md#late-hosts).",
	"`container_collective_coverage`: [the reasons](../docs/collectives.md#coverage). With `lost`, `budget` or `refused` the counts of " +
		"two ranks must not be compared.",
}

func collectiveMetrics() []metric {
	launches := func(name, help string, value func(*model.Launches) uint64) metric {
		return metric{
			name: name, typ: counter, owned: true, labels: []string{"library", "communicator", "rank", "operation"},
			detail: []string{"communicator", "rank"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Communicators {
					c := &v.shares.Communicators[i]
					for k := range c.Operations {
						o := &c.Operations[k]
						b.Since(c.Since).Share(float64(value(&o.Launches)), v.owners[c.Owner], c.Library, c.Key, c.Rank, o.Operation)
					}
				}
				for i := range v.shares.Collectives {
					s := &v.shares.Collectives[i]
					k := &s.Key
					b.Since(s.Since).Share(float64(value(&s.Value)), v.owners[s.Owner], k.Library, k.Communicator, "", k.Operation)
				}
			},
		}
	}
	of := func(
		name string, typ dto.MetricType, help string, labels []string, emit func(*exposition.Builder, *exposition.OwnerLabels, *share),
	) metric {
		return metric{
			name: name, typ: typ, owned: true, labels: labels, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Communicators {
					c := &v.shares.Communicators[i]
					emit(b, v.owners[c.Owner], c)
				}
			},
		}
	}
	return []metric{
		launches("container_collective_launches_total", "Calls of collective operations of NCCL or RCCL.",
			func(l *model.Launches) uint64 { return l.Count }),
		launches("container_collective_bytes_total", "Bytes in the arguments of collective operations.",
			func(l *model.Launches) uint64 { return l.Bytes }),
		of("container_collective_last_launch_timestamp_seconds", gauge, "Unix time of the last call of a collective operation.",
			[]string{"communicator", "rank"}, func(b *exposition.Builder, o *exposition.OwnerLabels, c *share) {
				known(b, moment(c.LastLaunch), o, c.Key, c.Rank)
			}),
		{
			name: "container_collective_late_seconds_total", typ: counter, owned: true, labels: []string{"communicator", "rank"},
			help: "Time from the first launch on this node to the rank's launch with the same number in the communicator.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Communicators {
					if c := &v.shares.Communicators[i]; c.Late.Known {
						b.Since(c.Since).Share(c.Late.Value, v.owners[c.Owner], c.Key, c.Rank)
					}
				}
			},
		},
		of("container_collective_communicator_info", gauge, "Ranks and parent of a communicator, and the version of its library.",
			[]string{"communicator", "rank", "nranks", "parent", "library", "version"},
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *share) {
				ranks := ""
				if c.Ranks > 0 {
					ranks = strconv.FormatUint(uint64(c.Ranks), 10)
				}
				b.Share(1, o, c.Key, c.Rank, ranks, c.Parent, c.Library, c.Version)
			}),
		{
			name: "container_collective_coverage", typ: gauge, owned: true, labels: []string{"reason"},
			help: "Whether all launches are counted by communicator, 1 (complete) or 0 for each reason.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.CollectiveGaps {
					value := 0.0
					if s.Gap == "" {
						value = 1
					}
					b.Share(value, v.owners[s.Owner], string(cmp.Or(s.Gap, "complete")))
				}
			},
		},
	}
}

type share = attribution.CommunicatorShare
