// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// held is a node over time.
type held struct {
	*node
	linger Linger
	judged Judge
	at     time.Time
}

func newHeld() *held {
	h := &held{node: newNode(), at: start}
	h.gpu().Fabric = model.FabricCompleted
	h.facts.FabricManager = &model.FabricManager{Running: true}
	h.port().LinkLayer = "InfiniBand"
	return h
}

// pass judges the node every 15 s for a time, and returns the verdicts of the last refresh.
func (h *held) pass(d time.Duration) Result {
	var last Result
	for end := h.at.Add(d); !h.at.After(end); h.at = h.at.Add(15 * time.Second) {
		last = h.once()
	}
	return last
}

func (h *held) once() Result {
	facts := h.facts
	h.linger.Update(h.at, &facts)
	return h.judged.Update(Input{At: h.at, Facts: &facts, Shares: &h.shares, States: h.states})
}

// states has a function for each value of each row, which sets the value. Rows without a Normal time are judged by
// their condition.
var states = map[string]map[string]func(*held){
	stateFabric: {
		"not_started": func(h *held) { h.gpu().Fabric = "not_started" },
		"in_progress": func(h *held) { h.gpu().Fabric = "in_progress" },
	},
	stateManager: {"no process nv-fabricmanager": func(h *held) { h.facts.FabricManager = &model.FabricManager{} }},
	statePower: {
		"suspending": func(h *held) { h.gpu().Suspended, h.gpu().PowerChange, h.gpu().Problems = true, "suspending", nil },
		"resuming":   func(h *held) { h.gpu().Suspended, h.gpu().PowerChange, h.gpu().Problems = true, "resuming", nil },
	},
	"rows": {
		"row_remap_pending":   func(h *held) { h.problem(model.ProblemRemapPending, true) },
		"page_retire_pending": func(h *held) { h.problem(model.ProblemRetirePending, true) },
	},
	"recovery": {
		"reset":           func(h *held) { h.gpu().RecoveryAction = model.RecoveryReset },
		"reboot":          func(h *held) { h.gpu().RecoveryAction = model.RecoveryReboot },
		"drain_p2p":       func(h *held) { h.gpu().RecoveryAction = model.RecoveryDrainP2P },
		"drain_and_reset": func(h *held) { h.gpu().RecoveryAction = model.RecoveryDrainAndReset },
	},
	"driver": {"a GPU without a driver": func(h *held) {
		h.facts.Missing = []model.MissingDevice{{Kind: model.KindGPU, ID: "0000:4e:00.0", Slot: "0000:4e:00.0", Since: start}}
	}},
	"mode": {
		"mig_pending": func(h *held) { h.gpu().Modes = map[string]string{"mig": "disabled", "mig_pending": "enabled"} },
		"ecc_pending": func(h *held) { h.gpu().Modes = map[string]string{"ecc": "enabled", "ecc_pending": "disabled"} },
	},
	"port": {
		"INIT":  func(h *held) { h.port().State = "INIT" },
		"ARMED": func(h *held) { h.port().State = "ARMED" },
	},
	stateDeferred: {"ACTIVE_DEFER": func(h *held) { h.port().State = "ACTIVE_DEFER" }},
	stateTraining: {
		"PortConfigurationTraining": func(h *held) { h.port().State, h.port().PhysState = "DOWN", "PortConfigurationTraining" },
		"LinkErrorRecovery":         func(h *held) { h.port().State, h.port().PhysState = "DOWN", "LinkErrorRecovery" },
		"Phy Test":                  func(h *held) { h.port().State, h.port().PhysState = "DOWN", "Phy Test" },
	},
	stateLink: {
		"link_training_failure": func(h *held) { h.port().State, h.link().Phy = "DOWN", &model.Phy{Reason: "link_training_failure"} },
		"cmis_not_ready": func(h *held) {
			h.port().State, h.link().Phy = "DOWN", &model.Phy{Reason: "module", Detail: "cmis_not_ready"}
		},
	},
	"polling": {
		"Polling":  func(h *held) { h.port().State, h.port().PhysState = "DOWN", "Polling" },
		"Sleep":    func(h *held) { h.port().State, h.port().PhysState = "DOWN", "Sleep" },
		"Disabled": func(h *held) { h.port().State, h.port().PhysState = "DOWN", "Disabled" },
		"no_partner_detected": func(h *held) {
			h.port().State, h.link().Phy = "DOWN", &model.Phy{Reason: "autoneg", Detail: "no_partner_detected"}
		},
		"no_cable": func(h *held) { h.port().State, h.link().Phy = "DOWN", &model.Phy{Reason: "no_cable"} },
	},
	"source": {"stuck": func(h *held) { h.states[0].State = model.StateStuck }},
	"device": {
		"blocked":     func(h *held) { h.device(model.StateBlocked) },
		"quarantined": func(h *held) { h.device(model.StateQuarantined) },
	},
	"release": {"released": func(h *held) { h.states[0].State = model.StateReleased }},
}

// notInFacts are rows whose values are not in the facts.
var notInFacts = []string{"carrier", "queue pair"}

func (h *held) device(s model.State) {
	h.facts.DeviceStates = []model.DeviceState{{Source: "rdma", Device: "mlx5_0", State: s}}
}

// never makes a node that was never in another state: a port that was active and goes down is RDMAPortDown at once.
func never(set func(*held)) *held {
	h := newHeld()
	set(h)
	return h
}

// TestIntermediateStates: each value of each row raises the condition of the row after the row's time. If the row has
// its own time, the condition does not hold earlier. If the state may last forever, it raises no condition.
func TestIntermediateStates(t *testing.T) {
	for i := range IntermediateStates {
		row := &IntermediateStates[i]
		values := states[row.Name]
		if (values == nil) != slices.Contains(notInFacts, row.Name) {
			t.Errorf("%s: no test", row.Name)
		}
		for value, set := range values {
			t.Run(row.Name+"/"+value, func(t *testing.T) {
				if !strings.Contains(row.Values, value) {
					t.Fatalf("%q does not name it", row.Values)
				}
				if row.Found == nil {
					if got := names(never(set).pass(25 * time.Hour)); !slices.Equal(got, []string{"NothingWrong"}) {
						t.Errorf("%v", got)
					}
					return
				}
				h := never(set)
				if early := names(h.pass(row.Normal - time.Minute)); row.present != nil && !slices.Equal(early, []string{"NothingWrong"}) {
					t.Errorf("too early: %v", early)
				}
				got := h.pass(time.Minute + 30*time.Second)
				want := row.Found
				if value == "in_progress" { // while the fabric manager runs
					want = fabricInProgress
				}
				if !slices.Equal(names(got), []string{want.Name}) {
					t.Fatalf("%v, want %s", names(got), want.Name)
				}
				if row.present != nil && row.Found != unhealthy && !strings.Contains(got.Verdicts[0].Evidence.Texts()[0], value) {
					t.Errorf("%q", got.Verdicts[0].Evidence.Texts())
				}
			})
		}
		if row.present == nil && row.Found != nil && row.Normal != row.Found.For {
			t.Errorf("%s: %v, of %s %v", row.Name, row.Normal, row.Found.Name, row.Found.For)
		}
	}
}

// TestFabricInTime: a registration that ends in time is not a problem, however often it happens. If it does not end in
// time, the problem ends with it.
func TestFabricInTime(t *testing.T) {
	h := newHeld()
	quiet := func(what string, d time.Duration) {
		t.Helper()
		if got := names(h.pass(d)); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("%s: %v", what, got)
		}
	}
	for range 10 {
		h.gpu().Fabric = "not_started"
		quiet("not started", time.Minute)
		h.gpu().Fabric = "in_progress"
		quiet("in progress", 3*time.Minute)
		h.gpu().Fabric = model.FabricCompleted
		quiet("completed", 6*time.Minute)
	}
	h.gpu().Fabric = "in_progress"
	if got := names(h.pass(20 * 24 * time.Hour)); !slices.Equal(got, []string{"GPUFabricInProgress"}) {
		t.Errorf("20 days: %v", got)
	}
	h.gpu().Fabric = model.FabricCompleted
	quiet("at last", 15*time.Second)
}

// TestFabricFlaps: a GPU that never keeps its registration has the verdict, also while it is registered, until it keeps
// the registration.
func TestFabricFlaps(t *testing.T) {
	h := newHeld()
	for range 8 {
		h.gpu().Fabric = "in_progress"
		h.pass(time.Minute)
		h.gpu().Fabric = model.FabricCompleted
		h.pass(time.Minute)
	}
	got := h.once()
	if !slices.Equal(names(got), []string{"GPUFabricNotReady"}) || !strings.Contains(got.Verdicts[0].Evidence.Texts()[0], "8 times for ") {
		t.Errorf("%+v", got.Verdicts)
	}
	if got := names(h.pass(6 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Errorf("it kept it: %v", got)
	}
}

// TestOneFabricOfMany: one GPU of eight is not registered. GPUs that are unknown, lost, or without a fabric are not
// judged.
func TestOneFabricOfMany(t *testing.T) {
	h := newHeld()
	for n := range 7 {
		g := *h.gpu()
		g.ID, g.UUID, g.Fabric = string(rune('1'+n)), "GPU-"+string(rune('1'+n)), []string{model.FabricCompleted, ""}[n%2]
		h.facts.GPUs = append(h.facts.GPUs, g)
	}
	h.facts.GPUs[5].Fabric = "in_progress"
	got := h.pass(6 * time.Minute)
	if len(got.Verdicts) != 1 || got.Verdicts[0].Name != "GPUFabricInProgress" || got.Verdicts[0].Subject.GPU != "5" {
		t.Errorf("%+v", got.Verdicts)
	}
	facts := h.facts
	h.linger.Update(h.at, &facts)
	for i := range facts.GPUs {
		want := []string{}
		if i == 5 {
			want = append(want, model.ProblemFabricNotReady)
		}
		if active := facts.GPUs[i].ActiveProblems(); !slices.Equal(active, want) {
			t.Errorf("GPU %d: %v", i, active)
		}
	}
	if len(h.facts.GPUs[5].ActiveProblems()) > 0 {
		t.Error("the source's own GPU was changed")
	}
}

// TestFabricInUse: CUDA works on a GPU if a process uses the GPU or a part of it.
func TestFabricInUse(t *testing.T) {
	for _, used := range []string{"GPU-0", "MIG-0"} {
		h := newHeld()
		h.gpu().Fabric = "in_progress"
		h.facts.GPUs = append(h.facts.GPUs, model.GPU{Vendor: model.NVIDIA, ID: "0:0", UUID: "MIG-0", Parent: "GPU-0"})
		h.facts.GPUProcesses = []model.GPUProcess{{GPU: used, PID: 7}}
		if got := names(h.pass(hour)); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("%s: %v", used, got)
		}
	}
}

// TestFabricAfterGaps: the time counts only while the sensor sees the GPU, and only since the last reset. A short gap
// does not end it.
func TestFabricAfterGaps(t *testing.T) {
	h := newHeld()
	h.gpu().Fabric = "in_progress"
	h.pass(4 * time.Minute)
	gpus := h.facts.GPUs
	h.facts.GPUs = nil
	h.pass(30 * time.Second)
	h.facts.GPUs = gpus
	if got := names(h.pass(2 * time.Minute)); !slices.Equal(got, []string{"GPUFabricInProgress"}) {
		t.Errorf("after a short gap: %v", got)
	}
	h.facts.GPUs = nil
	h.pass(10 * time.Minute)
	h.facts.GPUs = gpus
	if got := names(h.pass(4 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Errorf("after a release: %v", got)
	}
	h.gpu().Reset = h.at
	if got := names(h.pass(4 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Errorf("after a reset: %v", got)
	}
	if got := names(h.pass(2 * time.Minute)); !slices.Equal(got, []string{"GPUFabricInProgress"}) {
		t.Errorf("at last: %v", got)
	}
}

// TestFabricManagerFlaps: a fabric manager that restarts again and again is found while it runs.
func TestFabricManagerFlaps(t *testing.T) {
	h := newHeld()
	h.pass(time.Minute)
	for range 2 {
		h.facts.FabricManager.Starts++
		if got := names(h.pass(time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("maintenance: %v", got)
		}
	}
	h.facts.FabricManager.Starts++
	got := h.pass(time.Minute)
	if !slices.Equal(names(got), []string{"GPUFabricManagerLost"}) || got.Verdicts[0].Evidence.Texts()[0] != "starts of nv-fabricmanager +3 in 1h" {
		t.Errorf("%+v", got.Verdicts)
	}
	if got := names(h.pass(61 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Errorf("it runs on: %v", got)
	}
}

// TestTrainingOfOthers: a port that was active within a day is down, and a management NIC is not judged.
func TestTrainingOfOthers(t *testing.T) {
	h := newHeld()
	h.pass(time.Minute)
	h.port().State, h.port().PhysState = "DOWN", "PortConfigurationTraining"
	if got := names(h.pass(10 * time.Minute)); !slices.Equal(got, []string{"RDMAPortDown"}) {
		t.Errorf("%v", got)
	}
	h = newHeld()
	h.port().PhysState, h.port().RateBits = "PortConfigurationTraining", 25e9
	h.facts.HCAs[0].Board = "another"
	if got := names(h.pass(10 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Errorf("for management: %v", got)
	}
}

// TestFabricProved: a process shows that CUDA works. The time before does not count, nor do earlier flaps.
func TestFabricProved(t *testing.T) {
	h := newHeld()
	h.gpu().Fabric = "in_progress"
	for range 12 {
		h.facts.GPUProcesses = nil
		if got := names(h.pass(2 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("between two jobs: %v", got)
		}
		h.facts.GPUProcesses = []model.GPUProcess{{GPU: h.gpu().UUID, PID: 5}}
		if got := names(h.pass(2 * time.Minute)); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("in use: %v", got)
		}
	}
	h.facts.GPUProcesses = nil
	if got := names(h.pass(6 * time.Minute)); !slices.Equal(got, []string{"GPUFabricInProgress"}) {
		t.Errorf("no more: %v", got)
	}
	h.facts.GPUProcesses = []model.GPUProcess{{GPU: h.gpu().UUID, PID: 5}}
	if got := names(h.once()); !slices.Equal(got, []string{"NothingWrong"}) {
		t.Errorf("at the first process: %v", got)
	}
}

// TestFabricWaits: GPUs of shared NVSwitches wait for a partition while the fabric manager runs. No other state is harmless.
func TestFabricWaits(t *testing.T) {
	for _, c := range []struct {
		state   string
		manager *model.FabricManager
		want    []string
	}{
		{"in_progress", &model.FabricManager{Running: true}, []string{"GPUFabricInProgress"}},
		{"not_started", &model.FabricManager{Running: true}, []string{"GPUFabricNotReady"}},
		{"in_progress", &model.FabricManager{}, []string{"GPUFabricManagerLost", "GPUFabricNotReady"}},
		{"in_progress", nil, []string{"GPUFabricNotReady"}},
	} {
		h := newHeld()
		h.gpu().Fabric, h.facts.FabricManager = c.state, c.manager
		if got := names(h.pass(6 * time.Minute)); !slices.Equal(got, c.want) {
			t.Errorf("%s, %+v: %v, want %v", c.state, c.manager, got, c.want)
		}
	}
}

// TestTrainingUnseen: if two refreshes are far apart, the state between them is unknown.
func TestTrainingUnseen(t *testing.T) {
	h := newHeld()
	h.port().State, h.port().PhysState = "DOWN", "LinkErrorRecovery"
	for range 5 {
		if got := names(h.once()); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("%v", got)
		}
		h.at = h.at.Add(6 * time.Minute)
	}
	if got := names(h.once()); !slices.Equal(got, []string{"RDMALinkTraining"}) {
		t.Errorf("at each look: %v", got)
	}
}

// TestTrainingOfLegs: each leg of a bond, and each physical function without an HCA, has its own time.
func TestTrainingOfLegs(t *testing.T) {
	failed := &model.Phy{Reason: "link_training_failure"}
	for name, c := range map[string]struct {
		links []model.Link
		want  []string
	}{
		"the first leg": {[]model.Link{{Netdev: "p0", Phy: failed}, {Netdev: "p1", Phy: &model.Phy{}}}, []string{"mlx5_0/1 (p0)"}},
		"the last leg":  {[]model.Link{{Netdev: "p0", Phy: &model.Phy{}}, {Netdev: "p1", Phy: failed}}, []string{"mlx5_0/1 (p1)"}},
		"both legs":     {[]model.Link{{Netdev: "p0", Phy: failed}, {Netdev: "p1", Phy: failed}}, []string{"mlx5_0/1 (p0)", "mlx5_0/1 (p1)"}},
		"no bond":       {[]model.Link{{Netdev: "p0", Phy: failed}}, []string{"mlx5_0/1"}},
	} {
		for _, bare := range []bool{false, true} {
			h := newHeld()
			want := c.want
			if bare {
				want = nil
			}
			h.facts.Links = nil
			for _, l := range c.links {
				if !bare {
					l.Device, l.Port = "mlx5_0", 1
				} else if l.Phy == failed {
					want = append(want, l.Netdev)
				}
				h.facts.Links = append(h.facts.Links, l)
			}
			var got []string
			for _, v := range h.pass(6 * time.Minute).Verdicts {
				if v.Name == "RDMALinkTraining" {
					got = append(got, v.Subject.String())
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s, without an HCA %v: %q, want %q", name, bare, got, want)
			}
		}
	}
}

// TestTrainingOfFunctions: virtual functions share the link of their physical function, and its fault is one fault.
func TestTrainingOfFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		pf      bool // the PF is read
		held    bool // a workload has the virtual function
		devices []string
	}{
		"physical function":                {true, false, []string{"mlx5_0"}},
		"held by a workload":               {true, true, []string{"mlx5_0"}},
		"physical function not read":       {false, false, nil},
		"held, physical function not read": {false, true, []string{"mlx5_2"}},
	} {
		h := newHeld()
		h.port().State, h.port().PhysState = "DOWN", "LinkErrorRecovery"
		vf := h.facts.HCAs[0]
		vf.Name, vf.VF, vf.PF, vf.Ports = "mlx5_2", true, "mlx5_0", slices.Clone(vf.Ports)
		if h.facts.HCAs = append(h.facts.HCAs[:1], vf); !c.pf {
			h.facts.HCAs = h.facts.HCAs[1:]
		}
		if c.held {
			h.shares.Objects = append(h.shares.Objects, attribution.ObjectShare{Owner: 1, Device: "mlx5_2", Type: model.QP, Current: 1})
		}
		var got []string
		for _, v := range h.pass(6 * time.Minute).Verdicts {
			if v.Name == "RDMALinkTraining" {
				got = append(got, v.Subject.Device)
			}
		}
		if !slices.Equal(got, c.devices) {
			t.Errorf("%s: %v, want %v", name, got, c.devices)
		}
	}
}
