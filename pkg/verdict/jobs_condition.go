// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// Conditions of jobs: ranks of communicators on this node.
var (
	jobStalled = &Condition{
		Name: "JobStalled", Severity: Warning,
		Summary: "All ranks of a communicator on the node stopped launching, while their GPUs only wait or a rank has a fault.",
		Thresholds: []Threshold{
			{Of: "time since the last launch, by default", Value: defaultStallAfter.Seconds(), Unit: "s"},
			{Of: "the same / longest time between launches in the last hour", Value: 20},
		},
		Window: hour,
		Source: "docs/collectives.md; --job.stall-after",
		NoAlert: "it compares each launch with the job's own history, and reads the GPU and the state of each process, " +
			"which metrics lack",
	}
	jobMemberBehind = &Condition{
		Name: "JobMemberBehind", Severity: Warning,
		Summary:    "A rank launched fewer collectives than other ranks of its communicator, which wait for it.",
		Thresholds: []Threshold{{Of: "time since its last launch, without a known fault", Value: 600, Unit: "s"}},
		Source:     "20 times --job.stall-after; with a known fault --job.stall-after",
		Words:      map[string][]string{"operation": {"broadcast", "recv", "scatter", "send"}, "reason": {"complete", "graphs"}},
	}
	jobMemberLate = &Condition{
		Name: "JobMemberLate", Severity: Info, Window: lateParts * time.Minute, For: 5 * time.Minute,
		Summary: "The rank's host launches later than the other ranks of the communicator on the node.",
		Thresholds: []Threshold{
			{Of: "lateness / time between launches", Value: 0.05}, {Of: "lateness of a launch", Value: 0.001, Unit: "s"},
		},
		Source: "our limits; in four of five minutes, and no other rank is",
	}
	jobMemberSlow = &Condition{
		Name: "JobMemberSlow", Severity: Info,
		Summary: "The rank waits for receives less than all other ranks of the communicator, which wait for it.",
		Thresholds: []Threshold{
			{Of: "others' median - its share of the time", Value: 0.05, Equal: true},
			{Of: "its share / others' median", Value: 0.8, Below: true, Equal: true},
			{Of: "members", Value: 3, Equal: true},
		},
		Source: "docs/collectives.md", Words: map[string][]string{"operation": evenOperations},
	}
	pathSlow = &Condition{
		Name: "RDMAPathSlow", Severity: Info,
		Summary: "The sends of one rank take longer than the sends of all other ranks of the communicator, which wait.",
		Thresholds: []Threshold{
			{Of: "sends above others' median; others' waits; shares of the time", Value: 0.05, Equal: true},
			{Of: "its share / others' median", Value: 2, Equal: true},
		},
		Source:  "docs/collectives.md",
		NoAlert: "it compares sends in the seconds between two readings of the queue pairs, in which all waits are known",
	}
)

// defaultStallAfter is the default of Judge.StallAfter.
const defaultStallAfter = 30 * time.Second

const (
	// stallFactor is how many times longer a job stands than it ever did, or a rank without a known fault than a rank with a fault.
	stallFactor = 20
	// lateParts is the number of minutes over which JobMemberLate looks.
	lateParts = 5
)
