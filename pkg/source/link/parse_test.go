// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

func TestParseDCB(t *testing.T) {
	classes, bandwidth, algorithms := [8]byte{1, 0, 0, 3, 0, 0, 6}, [8]byte{40, 0, 0, 60}, [8]byte{2, 2, 2, 2, 2, 2, 0, 255}
	ets := nlattr(1, etsStruct(classes, bandwidth, algorithms)...)
	pfc := nlattr(2, pfcStruct(1<<3|1<<7, [8]uint64{3: 1 << 40, 7: 2}, [8]uint64{3: 5})...)
	want := model.DCB{PFC: [8]bool{3: true, 7: true}, ETS: &model.ETS{Classes: classes, Bandwidth: bandwidth, Algorithms: algorithms}}

	got, err := parseDCB(dcbMessage(ets, pfc, apps([4]byte{1, 3, 0x15, 0x89}, [4]byte{5, 3, 26, 0})))
	want.Trust = "dscp"
	if diff := cmp.Diff(want, got.DCB); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got.sent != [8]uint64{3: 1 << 40, 7: 2} || got.received != [8]uint64{3: 5} {
		t.Errorf("frames: sent %v, received %v", got.sent, got.received)
	}
	if got, err = parseDCB(dcbMessage(ets, pfc, apps([4]byte{1, 3, 0x15, 0x89}))); got.Trust != "pcp" || err != nil {
		t.Errorf("without a DSCP: %q, %v", got.Trust, err)
	}
	if got, err = parseDCB(dcbMessage()); got.DCB != (model.DCB{}) || err != nil {
		t.Errorf("nothing reported: %+v, %v", got, err)
	}
	if _, err := parseDCB(dcbMessage(nlattr(2, 1, 2, 3))); !errors.Is(err, netlink.ErrMalformed) {
		t.Errorf("a short structure: %v", err)
	}
}

func TestParsePause(t *testing.T) {
	got, err := parsePause(pauseMessage(1, 0, 7, 1<<33))
	if err != nil || !got.rx || got.tx || *got.sent != 7 || *got.received != 1<<33 || got.storms != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = parsePause(pauseMessage(0, 1, 7, 8, 9)); err != nil || got.rx || !got.tx || *got.storms != 9 {
		t.Errorf("with storms: %+v, %v", got, err)
	}
	if got, err = parsePause(generic(22, header(3, "eth0"), nlattr(3, 1), nlattr(4, 1))); err != nil || !got.rx || got.sent != nil {
		t.Errorf("without statistics: %+v, %v", got, err)
	}
}

func TestParseFEC(t *testing.T) {
	for name, c := range map[string]struct {
		message []byte
		want    model.FEC
	}{
		"mlx5, RS": {
			fecMessage(50, []uint64{10}, []uint64{1}, []uint64{900}),
			model.FEC{Mode: "rs", Corrected: new(uint64(10)), Uncorrectable: new(uint64(1)), CorrectedBits: new(uint64(900))},
		},
		"ice: blocks only": {
			fecMessage(50, []uint64{10}, []uint64{1}, nil), model.FEC{Mode: "rs", Corrected: new(uint64(10)), Uncorrectable: new(uint64(1))},
		},
		"FireCode, by lane": {
			fecMessage(51, []uint64{10, 4, 6}, []uint64{0, 0, 0}, nil), model.FEC{Mode: "baser", Corrected: new(uint64(10)), Uncorrectable: new(uint64(0))},
		},
		"off":             {fecMessage(49, nil, nil, nil), model.FEC{Mode: "off"}},
		"low latency RS":  {fecMessage(74, nil, nil, nil), model.FEC{Mode: "llrs"}},
		"no active mode":  {generic(30, header(3, "eth0"), nlattr(3, 0)), model.FEC{}},
		"an unknown mode": {fecMessage(200, nil, nil, nil), model.FEC{}},
	} {
		got, err := parseFEC(c.message)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(c.want, *got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := parseFEC(generic(30, nlattr(5|nestFlag, nlattr(2, 1, 2, 3)...))); !errors.Is(err, netlink.ErrMalformed) {
		t.Errorf("a part of a number: %v", err)
	}
}

func TestParseLinkState(t *testing.T) {
	u8 := func(typ uint16, v byte) []byte { return nlattr(typ, v) }
	for name, c := range map[string]struct {
		more []byte
		want model.Phy
	}{
		"up":                      {nil, model.Phy{}},
		"autoneg, which is 0":     {u8(5, 0), model.Phy{Reason: "autoneg"}},
		"with substate":           {join(u8(5, 1), u8(6, 4)), model.Phy{Reason: "link_training_failure", Detail: "remote_fault"}},
		"no cable, down 7 times":  {join(u8(5, 4), nlattr(7, le32(7)...)), model.Phy{Reason: "no_cable", Downs: new(uint64(7))}},
		"of a later kernel":       {join(u8(5, 99), u8(6, 1)), model.Phy{Reason: "other"}},
		"a substate of a later":   {join(u8(5, 10), u8(6, 9)), model.Phy{Reason: "module", Detail: "other"}},
		"a state without details": {join(u8(5, 9), u8(6, 0)), model.Phy{Reason: "overheat"}},
	} {
		got, err := parseLinkState(stateMessage(0, c.more))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(c.want, *got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseFamily(t *testing.T) {
	name := nlattr(2, append([]byte("ethtool"), 0)...)
	if id, err := parseFamily(generic(1, name, nlattr(1, 0x15, 0))); id != 0x15 || err != nil {
		t.Errorf("%d, %v", id, err)
	}
	if _, err := parseFamily(generic(1, name)); !errors.Is(err, netlink.ErrMalformed) {
		t.Errorf("without a number: %v", err)
	}
}

// mlx5Names are names in the order of mlx5e: only priority 3 has PFC.
var mlx5Names = []string{
	"rx_packets", "rx_prio0_bytes", "rx_prio3_pause", "rx_prio3_pause_duration", "tx_prio3_pause", "tx_prio3_pause_duration",
	"rx_prio3_pause_transition", "rx_global_pause", "tx_pause_storm_warning_events", "tx_pause_storm_error_events",
	"link_down_events_phy", "rx_corrected_bits_phy", "rx_prio33_pause", "rx_prio8_pause", "rx_prio_pause",
}

func TestStatistics(t *testing.T) {
	count := func(v uint64) *uint64 { return &v }
	pause := func(transmit bool, priority string, frames, micros *uint64) *model.PauseCount {
		return &model.PauseCount{Transmit: transmit, Priority: priority, Frames: frames, Micros: micros}
	}
	for driver, c := range map[string]struct {
		names  []string
		pauses []*model.PauseCount
		storms map[string]uint64
	}{
		"mlx5_core": {
			mlx5Names,
			[]*model.PauseCount{pause(false, "3", count(102), count(103)), pause(true, "3", count(104), count(105)), pause(false, "global", count(107), nil)},
			map[string]uint64{"warning": 108, "error": 109},
		},
		"bnxt_en": {
			[]string{"rx_pfc_ena_frames_pri0", "tx_pfc_ena_frames_pri0", "pfc_pri0_rx_duration_us", "pfc_pri0_rx_transitions", "continuous_roce_pause_events"},
			[]*model.PauseCount{pause(false, "0", count(100), count(102)), pause(true, "0", count(101), nil)},
			map[string]uint64{"roce": 104},
		},
		"ice": {
			[]string{"tx_priority_5_xon.nic", "tx_priority_5_xoff.nic", "rx_priority_5_xoff.nic", "link_xoff_rx.nic"},
			[]*model.PauseCount{pause(true, "5", count(101), nil), pause(false, "5", count(102), nil), pause(false, "global", count(103), nil)},
			nil,
		},
		"ionic": {
			[]string{"frames_rx_pripause", "rx_pripause_3_1us_count", "rx_pause_1us_count"},
			[]*model.PauseCount{pause(false, "any", count(100), nil), pause(false, "3", nil, count(101)), pause(false, "global", nil, count(102))},
			nil,
		},
		"mana": {
			[]string{"hc_tc0_rx_pause_phy", "hc_tc7_tx_pause_phy"},
			[]*model.PauseCount{pause(false, "tc0", count(100), nil), pause(true, "tc7", count(101), nil)},
			nil,
		},
		"hns3": {
			[]string{"mac_tx_pfc_pri1_pkt_num", "mac_tx_pfc_pri1_xoff_time", "mac_rx_mac_pause_num"},
			[]*model.PauseCount{pause(true, "1", count(100), nil), pause(false, "global", count(102), nil)},
			nil,
		},
		"ena": {[]string{"admin_q_pause"}, nil, nil},
	} {
		values := make([]uint64, len(c.names))
		for i := range values {
			values[i] = uint64(100 + i)
		}
		names := parseNames(driver, stringSet(c.names...))
		got, err := names.parseValues(le64(values...))
		if err != nil {
			t.Fatalf("%s: %v", driver, err)
		}
		want := map[pauseKey]*model.PauseCount{}
		for _, p := range c.pauses {
			want[pauseKey{p.Transmit, p.Priority}] = p
		}
		if diff := cmp.Diff(want, got.pauses, cmp.AllowUnexported(pauseKey{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", driver, diff)
		}
		if len(c.storms)+len(got.storms) > 0 && !cmp.Equal(c.storms, got.storms) {
			t.Errorf("%s: storms %v, want %v", driver, got.storms, c.storms)
		}
		if _, err := names.parseValues(le64(values[1:]...)); !errors.Is(err, netlink.ErrMalformed) {
			t.Errorf("%s: another number of values: %v", driver, err)
		}
	}
}

// TestHostLoss has the stalls of PCIe and the packets without room that each driver counts. Discards of priorities are
// added up.
func TestHostLoss(t *testing.T) {
	for name, c := range map[string]struct {
		driver    string
		names     []string
		stalls    model.PCIeStalls
		discarded map[string]uint64
	}{
		"mlx5": {
			"mlx5_core",
			[]string{
				"outbound_pci_stalled_rd", "outbound_pci_stalled_wr", "outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events",
				"outbound_pci_buffer_overflow", "rx_discards_phy", "tx_discards_phy", "rx_prio0_buf_discard", "rx_prio7_buf_discard",
				"rx_prio3_cong_discard", "rx_prio3_discards", "rx_prio3_marked",
			},
			model.PCIeStalls{ReadSeconds: new(uint64(102)), WriteSeconds: new(uint64(103))},
			map[string]uint64{"pcie_buffer": 104, "port_buffer": 105, "host_buffer": 107 + 108, "host_congestion": 109},
		},
		"mlx5 without stalls": {"mlx5_core", []string{"rx_discards_phy"}, model.PCIeStalls{}, map[string]uint64{"port_buffer": 100}},
		"bnxt_en": {
			"bnxt_en",
			[]string{"rx_discard_packets_cos0", "rx_discard_bytes_cos0", "rx_discard_packets_cos5"},
			model.PCIeStalls{},
			map[string]uint64{"port_buffer": 100 + 102},
		},
		"ice":   {"ice", []string{"rx_dropped", "rx_dropped.nic"}, model.PCIeStalls{}, map[string]uint64{"port_buffer": 101}},
		"ionic": {"ionic", []string{"frames_rx_dropped", "hw_rx_dropped"}, model.PCIeStalls{}, map[string]uint64{"port_buffer": 100}},
		"mana":  {"mana", []string{"hc_rx_pkt_drop_phy"}, model.PCIeStalls{}, map[string]uint64{"port_buffer": 100}},
		"hns3":  {"hns3", []string{"mac_rx_mac_pause_num"}, model.PCIeStalls{}, nil},
	} {
		values := make([]uint64, len(c.names))
		for i := range values {
			values[i] = uint64(100 + i)
		}
		table := parseNames(c.driver, stringSet(c.names...))
		counted, err := table.parseValues(le64(values...))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := driverReader{counted: counted}
		got := map[string]uint64(nil)
		for _, d := range r.facts().Discards {
			if got == nil {
				got = map[string]uint64{}
			}
			got[d.Reason] = d.Count
		}
		if diff := cmp.Diff(c.discarded, got); diff != "" {
			t.Errorf("%s: discards (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.stalls, r.facts().Stalls); diff != "" {
			t.Errorf("%s: stalls (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzMessages parses a payload as each kind of message.
func FuzzMessages(f *testing.F) {
	f.Add(dcbMessage(nlattr(2, pfcStruct(8, [8]uint64{}, [8]uint64{})...), apps([4]byte{5, 3, 26, 0})))
	f.Add(pauseMessage(1, 1, 2, 3, 4))
	f.Add(fecMessage(50, []uint64{1, 2}, []uint64{3}, nil))
	f.Add(stateMessage(0, nlattr(5, 1), nlattr(6, 2), nlattr(7, le32(3)...)))
	f.Add(generic(1, nlattr(1, 0x15, 0)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := parseDCB(b); err != nil && d.DCB != (model.DCB{}) {
			t.Errorf("DCB: %+v, %v", d, err)
		}
		if p, err := parsePause(b); err != nil && p != (pauseReply{}) {
			t.Errorf("pause: %+v, %v", p, err)
		}
		if p, err := parseFEC(b); (p == nil) != (err != nil) {
			t.Errorf("FEC: %+v, %v", p, err)
		}
		if p, err := parseLinkState(b); (p == nil) != (err != nil) || p != nil && p.Reason == "" && p.Detail != "" {
			t.Errorf("state: %+v, %v", p, err)
		}
		if id, err := parseFamily(b); err == nil && id < 16 {
			t.Errorf("family %d", id)
		}
	})
}

func FuzzStatistics(f *testing.F) {
	f.Add("mlx5_core", stringSet(mlx5Names...), le64(make([]uint64, len(mlx5Names))...))
	f.Add("ice", stringSet("rx_priority_0_xoff.nic"), le64(1))
	f.Fuzz(func(t *testing.T, driver string, names, values []byte) {
		table := parseNames(driver, names)
		if c, err := table.parseValues(values); (c == nil) != (err != nil) {
			t.Errorf("%v, %v", c, err)
		}
		for _, s := range table.wanted {
			if len(s.label) > len("host_congestion0") || s.index >= table.count {
				t.Errorf("%+v of %d", s, table.count)
			}
		}
	})
}

func FuzzCarrier(f *testing.F) {
	f.Add("0x1003", "up", "3", "1")
	f.Add("0x1002", "down", "4294967295", "x")
	f.Fuzz(func(t *testing.T, flags, state, changes, downs string) {
		if r, ok := parseCarrier(flags, state, changes, downs); !ok && r != (carrierReading{}) || r.downs > 1<<32 {
			t.Errorf("%+v, %v", r, ok)
		}
	})
}

// BenchmarkStatistics parses the statistics of an mlx5 interface with 64 channels: the names every 5 minutes, the
// values every 30 s.
func BenchmarkStatistics(b *testing.B) {
	names := mlx5Names
	for channel := range 64 {
		for i := range 60 {
			names = append(names, fmt.Sprintf("rx%d_statistic_%d", channel, i))
		}
	}
	table, values := parseNames("mlx5_core", stringSet(names...)), le64(make([]uint64, len(names))...)
	b.Run("names", func(b *testing.B) {
		set := stringSet(names...)
		for b.Loop() {
			parseNames("mlx5_core", set)
		}
	})
	b.Run("values", func(b *testing.B) {
		for b.Loop() {
			if _, err := table.parseValues(values); err != nil {
				b.Fatal(err)
			}
		}
	})
}
