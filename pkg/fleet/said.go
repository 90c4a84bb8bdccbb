// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Said is what the sensors of a job's nodes say about its members.
type Said struct {
	Verdicts []Verdict
	Silent   int // nodes whose verdicts are unknown
	Omitted  int // verdicts that are too many
	// Late are the ranks that launch after other nodes' ranks, by more than the clocks of the nodes may differ.
	Late     []Late
	MoreLate int // ranks that are too many
	// Uncompared are nodes with launches that are not compared: the times or the error of the clock are unknown.
	Uncompared int
	// Incomplete are communicators with ranks that no sensor knows.
	Incomplete     []Incomplete
	MoreIncomplete int // communicators that are too many
	// Faults are errors of devices that the members caused, and errors on their nodes that no known process caused.
	Faults     []Fault
	MoreFaults int // faults that are too many
	Unlogged   int // nodes whose faults are unknown
}

// Verdict is a condition of a member, as the sensor of its node says.
type Verdict struct {
	Node     string    `json:"node"`
	Name     string    `json:"name"`
	Severity Severity  `json:"severity"`
	Subject  string    `json:"subject"`
	Workload string    `json:"workload"`
	Since    time.Time `json:"since"`
	Evidence []string  `json:"evidence"`
}

// Late is a rank of a communicator, and how late it launches.
type Late struct {
	Communicator string `json:"communicator"`
	Rank         string `json:"rank"`
	Workload     string `json:"workload"`
	Node         string `json:"node"`
	// Seconds is the median time from the first compared rank on other nodes to this rank, of Launches launches. The clocks of the compared
	// nodes may differ by ErrorSeconds.
	Seconds      float64 `json:"late_seconds"`
	ErrorSeconds float64 `json:"error_seconds"`
	Launches     int     `json:"launches"`
}

func (l *Late) String() string {
	of := func(seconds float64) time.Duration {
		return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("rank %s of communicator %s (%s on %s) launches %v after the first compared rank on other nodes, "+
		"whose clocks differ by at most %v", l.Rank, l.Communicator, l.Workload, l.Node, of(l.Seconds), of(l.ErrorSeconds))
}

// Fault is an error of a GPU or an HCA in the kernel log of a node.
type Fault struct {
	Node     string    `json:"node"`
	Device   string    `json:"device"`
	Driver   string    `json:"driver"`
	Code     string    `json:"code"`
	Workload string    `json:"workload"` // of the process that caused it; empty if unknown
	Time     time.Time `json:"time"`
	Last     time.Time `json:"last"`     // the last of the equal faults
	Repeated uint64    `json:"repeated"` // number of equal faults after the first fault
	Text     string    `json:"text"`
}

func (f *Fault) String() string {
	text := fmt.Sprintf("%s on %s: %s %s of %s", f.Time.UTC().Format(time.DateTime), f.Node, f.Driver, f.Code, f.Device)
	if f.Workload != "" {
		text += ", by " + f.Workload
	}
	if f.Repeated > 0 {
		text += fmt.Sprintf(", %d more until %s", f.Repeated, f.Last.UTC().Format(time.DateTime))
	}
	return text + ": " + f.Text
}

// Incomplete is a communicator with ranks that no sensor knows.
type Incomplete struct {
	Communicator string
	Known        int
	NRanks       int
}

// notAsked is unknown without WithSaid.
const notAsked = "verdicts of the sensors, faults in kernel logs and lateness over nodes (not asked)"

// WithSaid returns the report with what sensors say.
func (r *JobReport) WithSaid(s *Said) *JobReport {
	more := *r
	more.Verdicts, more.Late = append([]Verdict{}, s.Verdicts...), append([]Late{}, s.Late...)
	slices.SortStableFunc(more.Verdicts, func(a, b Verdict) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	more.Faults = append([]Fault{}, s.Faults...)
	more.Unknown = slices.DeleteFunc(slices.Clone(r.Unknown), func(text string) bool { return text == notAsked })
	if s.Silent > 0 {
		more.Unknown = append(more.Unknown, "verdicts of the sensors of "+Counted(s.Silent, "node"))
	}
	if s.Omitted > 0 {
		more.Unknown = append(more.Unknown, Counted(s.Omitted, "more verdict")+" of the sensors")
	}
	if s.Unlogged > 0 {
		more.Unknown = append(more.Unknown, "faults in the kernel logs of "+Counted(s.Unlogged, "node"))
	}
	if s.MoreFaults > 0 {
		more.Unknown = append(more.Unknown, Counted(s.MoreFaults, "more fault")+" in kernel logs")
	}
	if s.Uncompared > 0 {
		more.Unknown = append(more.Unknown, "how late ranks on "+Counted(s.Uncompared, "node")+" launch")
	}
	if s.MoreLate > 0 {
		more.Unknown = append(more.Unknown, Counted(s.MoreLate, "more late rank"))
	}
	for _, c := range s.Incomplete {
		more.Unknown = append(more.Unknown, fmt.Sprintf("%d of %d ranks of communicator %s", c.NRanks-c.Known, c.NRanks, c.Communicator))
	}
	if s.MoreIncomplete > 0 {
		more.Unknown = append(more.Unknown, "ranks of "+Counted(s.MoreIncomplete, "more communicator"))
	}
	more.judge()
	more.sortNamed()
	return &more
}

// sortNamed moves the members that verdicts name to the front, the worst first.
func (r *JobReport) sortNamed() {
	named := map[[2]string]int{}
	for i := len(r.Verdicts) - 1; i >= 0; i-- { // the worst last
		if v := &r.Verdicts[i]; v.Severity.rank() <= Warning.rank() {
			named[[2]string{v.Node, v.Workload}] = i + 1
		}
	}
	place := func(m *Member) int { return cmp.Or(named[[2]string{m.Node, m.Workload}], len(r.Verdicts)+1) }
	r.Members = slices.Clone(r.Members)
	slices.SortStableFunc(r.Members, func(a, b Member) int { return cmp.Compare(place(&a), place(&b)) })
}
