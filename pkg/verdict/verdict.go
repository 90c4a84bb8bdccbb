// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/identity"
)

// Verdict is one condition that one subject has now.
type Verdict struct {
	Name     string // of the condition, and of its alert: RDMAPortDown
	Severity Severity
	Subject  Subject
	Summary  string // what the condition means, in one sentence
	Evidence Evidence
	// Since is when the condition began. A time before the sensor's start is known only if a driver or the kernel log
	// reports it.
	Since   time.Time
	Runbook string // URL
}

// Evidence returns figures with their units, the most important one first. Their text is made for each reader: most
// verdicts have none. A nil Evidence has no figures.
type Evidence func() []string

// Texts returns the figures, each of at most 240 bytes and valid UTF-8.
func (e Evidence) Texts() []string {
	if e == nil {
		return nil
	}
	texts := slices.Clone(e())
	for i := range texts {
		texts[i] = shorten(texts[i])
	}
	return texts
}

// Severity is how bad a condition is.
type Severity string

// The severities, worst first. Alerts have the same severities. Only NothingWrong is OK.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
	OK       Severity = "ok"
)

// Severities lists the severities, worst first.
var Severities = []Severity{Critical, Warning, Info, OK}

// Kind is the kind of a subject.
type Kind string

// Kinds of subjects, with the fields of Subject that name each.
const (
	OfNode     Kind = "node"
	OfPort     Kind = "port"     // of an HCA: Device and Port
	OfHCA      Kind = "hca"      // Device
	OfGPU      Kind = "gpu"      // GPU and UUID
	OfSwitch   Kind = "switch"   // an NVSwitch: Device is its PCI address
	OfWorkload Kind = "workload" // Owner, and the HCA or GPU that it uses
	OfSource   Kind = "source"   // Source, and its Device
)

// Subject is what has a condition. Fields that do not apply are empty. Names of workloads, devices and sources may have
// any characters.
type Subject struct {
	Kind      Kind
	Owner     identity.Owner
	Device    string // HCA, or the device of a source
	Port      int
	GPU, UUID string // ID and UUID of a GPU
	Source    string
	// Detail distinguishes otherwise equal subjects: an errno, the code of a fault, the name of a map.
	Detail string
}

// String names the subject: "mlx5_0/1", "GPU 3", "NVSwitch 0000:85:00.0", "ns/pod/container on mlx5_0", "source rdma".
func (s Subject) String() string { return string(s.appendName(nil)) }

// appendName appends the subject's name to b, which has to be empty.
func (s Subject) appendName(b []byte) []byte {
	part := func(texts ...string) {
		for _, text := range texts {
			b = append(b, text...)
		}
		b = append(b, ' ')
	}
	on := ""
	switch s.Kind {
	case OfNode:
		part("node")
	case OfWorkload:
		part(cmp.Or(s.Owner.Workload, format.NoOwner))
		on = "on "
	case OfSwitch:
		part("NVSwitch")
	case OfSource:
		part("source ", s.Source)
	}
	switch {
	case s.GPU != "" || s.UUID != "":
		part(on, "GPU ", cmp.Or(s.GPU, s.UUID))
	case s.Port > 0:
		part(on, s.Device, "/", strconv.Itoa(s.Port))
	case s.Device != "":
		part(on, s.Device)
	}
	if s.Detail != "" {
		part("(", s.Detail, ")")
	}
	return bytes.TrimSuffix(b, []byte(" "))
}

// compareNames orders subjects by name.
func compareNames(a, b *Subject) int {
	var nameA, nameB [128]byte // most names are shorter, and allocate nothing
	return bytes.Compare(a.appendName(nameA[:0]), b.appendName(nameB[:0]))
}
