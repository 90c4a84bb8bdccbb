// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestHostileTenant: a tenant with hundreds of containers, each with all conditions that a workload can have, fills
// only the room of its namespace. Another tenant and the devices keep their room. What had no room is counted.
func TestHostileTenant(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.shares.Owners = []identity.Owner{{}}
	errors := func(owner, kinds int) {
		for k := range kinds {
			errno := fmt.Sprintf("E%d\xff%s", k, strings.Repeat("x", 300))
			n.shares.VerbErrors = append(n.shares.VerbErrors, attribution.Share[model.VerbErrorKey, model.Count]{
				Owner: owner, Key: model.VerbErrorKey{Device: "mlx5_0", Verb: "reg_mr", Errno: errno}, Value: 1000,
			})
		}
		n.shares.DriverShares = append(n.shares.DriverShares, attribution.DriverShare{Owner: owner, Driver: "nvidia", Oldest: hour})
		for _, h := range []int{0, 1} {
			n.shares.Assigned = append(n.shares.Assigned, attribution.DeviceShare{
				Owner: owner, HCA: &n.facts.HCAs[h], Allocated: attribution.EvidenceKubelet,
			})
		}
	}
	for i := range 400 {
		n.shares.Owners = append(n.shares.Owners, identity.Owner{
			Workload: fmt.Sprintf("evil/%d/x", i), Namespace: "evil", Pod: fmt.Sprint(i), ContainerID: fmt.Sprint("c", i),
		})
		errors(i+1, 20)
	}
	n.shares.Owners = append(n.shares.Owners, worker)
	errors(401, 2)
	n.shares.Registered = []attribution.RegisteredShare{{Device: "mlx5_0"}, {Device: "mlx5_1"}}
	for at := start; at.Before(start.Add(3 * hour)); at = at.Add(10 * time.Minute) {
		for i := range n.shares.VerbErrors {
			n.shares.VerbErrors[i].Value += 10
		}
		if n.judge(j, at); len(j.growth.histories) > 600 || len(j.since) > 200 || len(j.uses) > 600 {
			t.Fatalf("%d counters, %d conditions, %d uses", len(j.growth.histories), len(j.since), len(j.uses))
		}
	}
	n.port().State = "DOWN"
	for i := range n.shares.VerbErrors {
		n.shares.VerbErrors[i].Value += 10
	}
	got := n.judge(j, start.Add(3*hour))
	owners, namespaces := map[string]int{}, map[string]int{}
	for i := range got.Verdicts {
		v := &got.Verdicts[i]
		owners[v.Subject.Owner.ContainerID]++
		namespaces[v.Subject.Owner.Namespace]++
		for _, e := range v.Evidence.Texts() {
			if len(e) > maxEvidence+utf8.UTFMax || !utf8.ValidString(e) {
				t.Errorf("evidence %q", e)
			}
		}
	}
	if d := cmp.Diff(map[string]int{"": 1, "evil": maxPerNamespace, "ml": 5}, namespaces); d != "" {
		t.Error(d)
	}
	for id, count := range owners {
		if count > maxPerOwner {
			t.Errorf("%s has %d verdicts", id, count)
		}
	}
	if got.Verdicts[0].Name != "RDMAPortDown" || got.Omitted < 1000 {
		t.Errorf("%s first, %d omitted", got.Verdicts[0].Name, got.Omitted)
	}
}

// TestSorted: the worst severity comes first. Of one severity, the condition that began first comes first.
func TestSorted(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.judge(j, start)
	n.problem(model.ProblemECC, true)
	n.judge(j, start.Add(time.Minute))
	n.port().State = "DOWN"
	n.gpu().XIDs = []model.XID{{Code: 13, Count: 1, Last: start}}
	n.states[0].State = model.StateFailed
	got := names(n.judge(j, start.Add(2*time.Minute)))
	want := []string{"RDMAPortDown", "GPUUncorrectedECC", "AccelscopeSourceLost", "GPUXidNoncritical"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestCounters: counters that are reset or go away with their device, and a clock that stands still or goes back.
func TestCounters(t *testing.T) {
	n, j := newNode(), &Judge{}
	at := start
	expect := func(what string, after time.Duration, want ...string) {
		t.Helper()
		at = at.Add(after)
		if got := names(n.judge(j, at)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("at first", 0, "NothingWrong")
	n.port().Counters[2].Value = 1 // of 7 before
	expect("reset", time.Minute, "NothingWrong")
	n.grow("link_downed", 1)
	expect("and one more", time.Minute, "RDMALinkUnstable")
	expect("at the same time", 0, "RDMALinkUnstable")
	expect("earlier", -time.Hour, "RDMALinkUnstable")
	hcas := n.facts.HCAs
	n.facts.HCAs = nil
	expect("without HCAs", 2*time.Hour, "NothingWrong")
	if len(j.growth.histories) > 20 {
		t.Errorf("%d counters of no HCA", len(j.growth.histories))
	}
	n.facts.HCAs = hcas
	expect("HCAs are back", time.Minute, "NothingWrong")
	n.port().State = "DOWN"
	expect("down", time.Minute, "RDMAPortDown")
	expect("for a day", 23*time.Hour, "RDMAPortDown")
	expect("for more", time.Hour, "NothingWrong")
	n.facts.HCAs = nil
	expect("long ago", 25*time.Hour, "NothingWrong")
	if len(j.ports) != 0 {
		t.Errorf("%d ports of no HCA", len(j.ports))
	}
}

// TestUnusedPort: a port that was never active is not down, and ports of other boards and VFs are not expected to have
// the same rate.
func TestUnusedPort(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.port().State = "DOWN"
	n.facts.HCAs[1].Ports[0].RateBits = 100e9
	n.facts.HCAs = append(n.facts.HCAs, model.HCA{Name: "mlx5_2", Type: "MT4129", Board: "MT_838", VF: true, Ports: []model.Port{{
		Number: 1, State: stateActive, LinkLayer: "InfiniBand", RateBits: 25e9,
	}}})
	for range 2 {
		if got := names(n.judge(j, start)); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Error(got)
		}
	}
	n.facts.HCAs[2].Ports[0].RateBits = 10e9
	if got := n.judge(j, start); got.Verdicts[0].Evidence.Texts()[1] != "it had 25 Gbit/s within 168h" {
		t.Errorf("%+v", got)
	}
}

// TestUnknownState: a port whose state is unknown is not down, and a port that was down before is still down since
// then.
func TestUnknownState(t *testing.T) {
	n, j := newNode(), &Judge{}
	at := start
	expect := func(state, want string, since time.Time) {
		t.Helper()
		at = at.Add(time.Minute)
		if n.port().State = state; state == "" {
			n.port().PhysState, n.port().RateBits, n.port().Width, n.port().Speed = "", 0, 0, ""
		}
		got := n.judge(j, at)
		if !slices.Equal(names(got), []string{want}) || want == "RDMAPortDown" && !got.Verdicts[0].Since.Equal(since) {
			t.Errorf("%q: %+v", state, got.Verdicts)
		}
	}
	expect(stateActive, "NothingWrong", start)
	expect("", "NothingWrong", start)
	expect("", "NothingWrong", start)
	expect("DOWN", "RDMAPortDown", start.Add(4*time.Minute))
	expect("", "NothingWrong", start)
	expect("DOWN", "RDMAPortDown", start.Add(4*time.Minute))
}

// TestManagement: a slow NIC that no workload uses may be down, also after all its ports went down. A used NIC may not.
func TestManagement(t *testing.T) {
	n, j := newNode(), &Judge{}
	slow := &n.facts.HCAs[1]
	slow.Type, slow.Ports[0].RateBits = "MT4117", 25e9
	at := start
	expect := func(want string) {
		t.Helper()
		at = at.Add(time.Minute)
		if got := names(n.judge(j, at)); !slices.Equal(got, []string{want}) {
			t.Errorf("%v, want %s", got, want)
		}
	}
	expect("NothingWrong")
	for range 2 {
		slow.Ports[0].State = "DOWN"
		expect("NothingWrong")
	}
	slow.Ports[0].State = stateActive
	n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: slow.Name, Type: model.QP, Current: 1}}
	expect("NothingWrong")
	slow.Ports[0].State = "DOWN"
	expect("RDMAPortDown")
	slow.Ports[0].State, slow.Ports[0].GIDs = stateActive, routable[:1]
	slow.NodeType = "CA"
	expect("RDMAGIDMissing") // the port never had a GID, and a workload has a queue pair on it
}

// TestKernelStorage: a slow NIC that NVMe-oF, NFS or another consumer in the kernel uses is not a management NIC. Queue
// pairs for management datagrams and IPoIB, which each port has, do not count as use.
func TestKernelStorage(t *testing.T) {
	for module, want := range map[string]string{
		"nvme_rdma": "RDMAPortDown", "ko2iblnd": "RDMAPortDown", "rpcrdma": "RDMAPortDown",
		"ib_core": "NothingWrong", "ib_ipoib": "NothingWrong", "mlx5_ib": "NothingWrong",
	} {
		n, j := newNode(), &Judge{}
		slow := &n.facts.HCAs[1]
		slow.Type, slow.Ports[0].RateBits = "MT4117", 25e9
		n.facts.Domains = []model.Domains{{Device: slow.Name, Count: 2}, {Device: slow.Name, Module: module, Count: 1, Used: 1}}
		n.judge(j, start.Add(time.Minute))
		slow.Ports[0].State = "DOWN"
		if got := names(n.judge(j, start.Add(2*time.Minute))); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v, want %s", module, got, want)
		}
	}
}

// TestManagementErrors: errors and losses of a slow NIC that no workload uses are not judged. They are judged if a
// workload uses the NIC.
func TestManagementErrors(t *testing.T) {
	n, j := newNode(), &Judge{}
	slow := &n.facts.HCAs[1]
	slow.Type, slow.Ports[0].RateBits = "MT4117", 25e9
	at := start
	expect := func(want ...string) {
		t.Helper()
		for _, list := range [][]model.Counter{slow.Ports[0].Counters, slow.Ports[0].HWCounters} {
			for i := range list {
				list[i].Value += 1e6
			}
		}
		at = at.Add(time.Minute)
		if got := names(n.judge(j, at)); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	expect("NothingWrong")
	expect("NothingWrong")
	n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: slow.Name, Type: model.QP, Current: 1}}
	expect("NothingWrong") // counted from now on
	expect("RDMALinkUnstable", "RDMAOutOfBuffer", "RDMARetransmissions", "RDMACongestion", "RDMACongestionIgnored", "RDMABelowLineRate")
}

// TestFlaps: losses of the carrier count, within an hour and within 12 hours.
func TestFlaps(t *testing.T) {
	n, j := newNode(), &Judge{}
	at := start
	expect := func(after time.Duration, flaps uint64, want string) {
		t.Helper()
		at = at.Add(after)
		n.link().Carrier.Flaps += flaps
		if got := names(n.judge(j, at)); !slices.Equal(got, []string{want}) {
			t.Errorf("%v, want %s", got, want)
		}
	}
	expect(0, 0, "NothingWrong")
	expect(time.Minute, 1, "NothingWrong")
	expect(2*hour, 1, "NothingWrong")
	expect(2*hour, 1, "RDMALinkUnstable")
	expect(12*hour, 0, "NothingWrong")
	expect(time.Minute, 2, "RDMALinkUnstable")
}

// TestBestRate: a port is compared with its highest rate within a week, from the last time it had it.
func TestBestRate(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.facts.HCAs = n.facts.HCAs[:1]
	for _, step := range []struct {
		at   time.Duration
		rate float64
		want string
	}{
		{0, 400e9, "NothingWrong"},
		{100 * hour, 400e9, "NothingWrong"},
		{101 * hour, 200e9, "RDMALinkDegraded"},
		{200 * hour, 200e9, "RDMALinkDegraded"},
		{267 * hour, 200e9, "RDMALinkDegraded"},
		{269 * hour, 200e9, "NothingWrong"},
	} {
		n.port().RateBits = step.rate
		if got := names(n.judge(j, start.Add(step.at))); !slices.Equal(got, []string{step.want}) {
			t.Errorf("after %v: %v, want %s", step.at, got, step.want)
		}
	}
}

// TestLostPackets: one of the two counters of lost packets is enough.
func TestLostPackets(t *testing.T) {
	for _, counter := range []string{"out_of_sequence", "local_ack_timeout_err"} {
		n, j := newNode(), &Judge{}
		n.port().HWCounters = []model.Counter{{Name: counter, Value: 7}}
		n.judge(j, start)
		n.grow(counter, 1e6)
		if got := names(n.judge(j, start.Add(15*time.Second))); !slices.Equal(got, []string{"RDMARetransmissions"}) {
			t.Errorf("%s: %v", counter, got)
		}
	}
}

// TestEventsLost: losses for all reasons add up.
func TestEventsLost(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.facts.Events.Dropped = []model.Loss{{Reason: "overflow"}, {Reason: "subscriber", Count: 5}}
	n.judge(j, start)
	n.facts.Events.Dropped[0].Count = 3
	got := n.judge(j, start.Add(15*time.Second)).Verdicts[0]
	if text := strings.Join(got.Evidence.Texts(), "; "); got.Name != "AccelscopeEventsLost" || text != "events +8 in 15m" {
		t.Errorf("%s: %q", got.Name, text)
	}
}

// TestUnownedMemory: a workload without a process on the GPU is not one of its users.
func TestUnownedMemory(t *testing.T) {
	for processes, want := range map[uint64]string{0: "NothingWrong", 1: "GPUMemoryUnowned"} {
		n, j := newNode(), &Judge{}
		n.shares.Owners = append(n.shares.Owners, identity.Owner{Workload: "ml/b/x"})
		n.shares.GPUs = []attribution.GPUShare{
			{GPU: n.gpu(), Listed: true, Memory: model.Some(16 << 30)},
			{Owner: 1, GPU: n.gpu(), Listed: true, Processes: 2},
			{Owner: 2, GPU: n.gpu(), Listed: true, Processes: processes},
		}
		for _, after := range []time.Duration{0, 15 * time.Second} {
			n.judge(j, start.Add(after))
		}
		if got := names(n.judge(j, start.Add(hour))); !slices.Equal(got, []string{want}) {
			t.Errorf("%d processes: %v, want %s", processes, got, want)
		}
	}
}

// TestMissingLately: what the kernel lists is not old enough to say something about a device that is missing for a minute.
func TestMissingLately(t *testing.T) {
	for since, want := range map[time.Duration]string{
		time.Minute:     "H100 at 0000:4e:00.0; last listed 1m ago",
		2 * time.Minute: "H100 at 0000:4e:00.0; last listed 2m ago; its PCI function is there, without a driver",
	} {
		n := newNode()
		n.facts.PCI = []model.PCIFunction{{Address: "0000:4e:00.0"}}
		n.facts.Missing = []model.MissingDevice{{Kind: model.KindGPU, ID: "GPU-7", Name: "H100", Slot: "0000:4e:00.0", Seen: start.Add(-since), Since: start.Add(-since)}}
		if got := strings.Join(n.judge(&Judge{}, start).Verdicts[0].Evidence.Texts(), "; "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRecoveredGPU: once the driver reports a recovery action, or that the GPU has recovered, faults and XIDs are not
// verdicts.
func TestRecoveredGPU(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.fault(model.DriverNVIDIA, "79", start)
	n.problem(model.ProblemXID, true)
	n.gpu().XIDs = []model.XID{{Code: 79, Count: 1, Last: start}}
	if got := names(n.judge(j, start)); !slices.Equal(got, []string{"GPUXidCritical"}) {
		t.Error(got)
	}
	n.gpu().RecoveryAction = model.RecoveryNone
	if got := names(n.judge(j, start)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Error(got)
	}
	n.gpu().RecoveryAction = ""
	n.problem(model.ProblemXID, false)
	if got := names(n.judge(j, start)); !slices.Equal(got, []string{"GPUFault"}) {
		t.Error(got)
	}
	recovered := n.shares.FaultTotals[0]
	recovered.FaultTotal = &model.FaultTotal{
		FaultKey: model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:c1:00.0", Code: recoveredXID}, Recovered: start.Add(time.Second),
	}
	n.shares.FaultTotals = append(n.shares.FaultTotals, recovered)
	if got := names(n.judge(j, start)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Error(got)
	}
}

// TestFunctionFaults: faults in the log of the PCI core are faults of an HCA only if the function has or had an HCA
// that is not for management.
func TestFunctionFaults(t *testing.T) {
	for code, want := range map[string][]string{
		"pcie_fatal": {"RDMAFault"}, "inaccessible": {"RDMAFault"}, "pcie_nonfatal": {"NothingWrong"}, "command_timeout": {"RDMAFault"},
	} {
		for name, set := range map[string]func(*node){
			"HCA":    func(*node) {},
			"no HCA": func(n *node) { n.shares.FaultTotals[0].HCA = "" },
			"for management": func(n *node) {
				n.port().RateBits, n.facts.HCAs[0].Board = 25e9, "another"
			},
			"for management, gone": func(n *node) { n.facts.HCAs = n.facts.HCAs[1:] },
			"gone":                 func(n *node) { n.shares.FaultTotals[0].HCA = "mlx5_9" },
		} {
			n, j := newNode(), &Judge{}
			if strings.HasPrefix(name, "for") {
				n.port().RateBits, n.facts.HCAs[0].Board = 25e9, "another"
				n.judge(j, start)
			}
			n.fault(model.DriverMLX5, code, start)
			set(n)
			want := want
			if code != "command_timeout" && name != "HCA" && name != "gone" {
				want = []string{"NothingWrong"}
			}
			if got := names(n.judge(j, start.Add(time.Minute))); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %v, want %v", code, name, got, want)
			}
		}
	}
}

// TestOfFault: OfFault returns the condition that a fault raises.
func TestOfFault(t *testing.T) {
	for key, want := range map[model.FaultKey]string{
		{Driver: model.DriverMLX5, Code: "health_compromised"}:                       "RDMAFault",
		{Driver: model.DriverMLX5, Code: "pcie_nonfatal"}:                            "",
		{Driver: model.DriverMLX5, Code: "pcie_fatal"}:                               "", // the device may be an ordinary NIC
		{Driver: model.DriverNVIDIA, Code: "pcie_fatal"}:                             "GPUFault",
		{Driver: model.DriverNVIDIA, Code: "79"}:                                     "GPUFault",
		{Driver: model.DriverNVIDIA, Code: "31"}:                                     "",
		{Driver: model.DriverNVIDIA, Code: "145"}:                                    "GPUFault",
		{Driver: model.DriverNVIDIA, Code: "145", Severity: model.FaultFatal}:        "GPUFault",
		{Driver: model.DriverNVIDIA, Code: "145", Severity: model.FaultNonfatal}:     "",
		{Driver: model.DriverNVIDIA, Code: "151", Severity: model.FaultFatal}:        "GPUFault", // a code of a later driver
		{Driver: model.DriverNVSwitch, Code: "20034", Severity: model.FaultFatal}:    "GPUFault",
		{Driver: model.DriverNVSwitch, Code: "20034", Severity: model.FaultNonfatal}: "",
		{Driver: model.DriverNVSwitch, Code: "20034"}:                                "",
		{Driver: model.DriverNVSwitch, Code: "79"}:                                   "", // the code is not an XID
	} {
		f := model.Fault{FaultKey: key}
		if got := OfFault(&f); got != want {
			t.Errorf("%+v: %q, want %q", f.FaultKey, got, want)
		}
		if f.Recovered = true; OfFault(&f) != "" {
			t.Errorf("%+v has recovered", f.FaultKey)
		}
	}
}

// TestSubject: the name of a subject comes from its fields.
func TestSubject(t *testing.T) {
	for want, s := range map[string]Subject{
		"node": {Kind: OfNode}, "NVSwitch 0000:85:00.0 (20034)": {Kind: OfSwitch, Device: "0000:85:00.0", Detail: "20034"},
		"GPU 3": {Kind: OfGPU, GPU: "3", UUID: "GPU-3"}, "GPU GPU-3": {Kind: OfGPU, UUID: "GPU-3"},
		"0000:c1:00.0 (79)": {Kind: OfGPU, Device: "0000:c1:00.0", Detail: "79"}, "(no owner) on mlx5_0": {Kind: OfWorkload, Device: "mlx5_0"},
		"source rdma mlx5_0": {Kind: OfSource, Source: "rdma", Device: "mlx5_0"}, "mlx5_0": {Kind: OfHCA, Device: "mlx5_0"},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFaultOfSwitch: a fatal fault of an NVSwitch has the switch as its subject. A nonfatal fault of a GPU with the
// code of a critical XID raises no condition.
func TestFaultOfSwitch(t *testing.T) {
	n := newNode()
	total := func(driver model.FaultDriver, code string, severity model.FaultSeverity, gpu string) attribution.FaultTotal {
		key := model.FaultKey{Driver: driver, PCIAddress: "0000:85:00.0", Code: code, Severity: severity}
		return attribution.FaultTotal{
			FaultDevice: attribution.FaultDevice{GPU: gpu, UUID: gpu}, FaultTotal: &model.FaultTotal{FaultKey: key, Count: 1, Last: start},
		}
	}
	n.shares.FaultTotals = []attribution.FaultTotal{
		total(model.DriverNVIDIA, "145", model.FaultNonfatal, "0"), total(model.DriverNVSwitch, "20034", model.FaultNonfatal, ""),
	}
	if got := names(n.judge(&Judge{}, start)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Error(got)
	}
	n.shares.FaultTotals = append(n.shares.FaultTotals, total(model.DriverNVSwitch, "20034", model.FaultFatal, ""))
	got := n.judge(&Judge{}, start).Verdicts
	if len(got) != 1 || got[0].Name != "GPUFault" || got[0].Subject.Kind != OfSwitch || got[0].Subject.String() != "NVSwitch 0000:85:00.0 (20034)" {
		t.Errorf("%+v", got)
	}
}

// TestFaultBeforeReset: a fault in the kernel log is over if the GPU was reset after it.
func TestFaultBeforeReset(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.fault(model.DriverNVIDIA, "95", start)
	for _, c := range []struct {
		reset time.Time
		want  string
	}{{time.Time{}, "GPUFault"}, {start.Add(-time.Second), "GPUFault"}, {start.Add(time.Second), "NothingWrong"}} {
		n.gpu().Reset = c.reset
		if got := names(n.judge(j, start.Add(time.Minute))); !slices.Equal(got, []string{c.want}) {
			t.Errorf("reset at %v: %v", c.reset, got)
		}
	}
}
