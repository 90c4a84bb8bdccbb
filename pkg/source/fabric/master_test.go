// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestParseMaster(t *testing.T) {
	const answer = "sminfo: sm lid 7 sm guid 0xb8cef60300000101, activity count 12 priority 15 state 3 SMINFO_MASTER\n"
	want := &model.FabricMaster{GUID: "0xb8cef60300000101", LID: 7, Priority: 15}
	if d := cmp.Diff(want, parseMaster([]byte(answer))); d != "" {
		t.Error(d)
	}
	for _, text := range []string{
		"", "ibwarn: [1] _do_madrpc: recv failed\n", "sminfo: sm lid 7 sm guid 0x1, activity count 1 priority 0 state 2 SMINFO_STANDBY\n",
		"x" + answer,
	} {
		if got := parseMaster([]byte(text)); got != nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func FuzzMaster(f *testing.F) {
	f.Add([]byte("sminfo: sm lid 7 sm guid 0xb8cef60300000101, activity count 12 priority 15 state 3 SMINFO_MASTER\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if m := parseMaster(text); m != nil && (len(m.GUID) != 18 || m.LID > 99999 || m.Priority > 99) {
			t.Errorf("%+v", m)
		}
	})
}

// TestLinkStates: a link that is up and not active.
func TestLinkStates(t *testing.T) {
	for shown, want := range map[string]string{"Active": "Active", "Initialize": "Initialize", "Armed": "Armed", "Odd": ""} {
		top := parseTopology(sample(t, "ports-hdr.out"), sample(t, "list-hdr.out"), sample(t, "owners-hdr.out"))
		top.parseLinks(bytes.ReplaceAll(sample(t, "links-hdr.out"), []byte("Initialize/"), []byte(shown+"/")))
		if got := top.nodes[leafGUID].ports[2]; got.peer == nil || got.state != want || got.narrow == nil {
			t.Errorf("%s: %+v", shown, got)
		}
		if got := top.nodes[leafGUID].ports[3].state; got != "" {
			t.Errorf("a port without a link: %s", got)
		}
	}
}

// TestMasterChanges has a manager, no answer, the same manager again, and another manager: one change.
func TestMasterChanges(t *testing.T) {
	const a, b = "0xb8cef60300000101", "0xb8cef60300000202"
	s, _, dir := fabricOf(t, each+`perfquery-extended.out; done`)
	s.run.paths[sminfo] = filepath.Join(fakes(t, map[string]string{sminfo: "cat " + dir + "/master"}), sminfo)
	for i, round := range []struct {
		guid    string
		changes uint64
	}{{a, 0}, {"", 0}, {a, 0}, {b, 1}, {b, 1}} {
		answer := "sminfo: sm lid 7 sm guid " + round.guid + ", activity count 12 priority 15 state 3 SMINFO_MASTER\n"
		if round.guid == "" {
			answer = "ibwarn: [1] _do_madrpc: recv failed\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "master"), []byte(answer), 0o600); err != nil {
			t.Fatal(err)
		}
		got := read(t, s)
		guid := ""
		if got.Master != nil {
			guid = got.Master.GUID
		}
		if guid != round.guid || got.MasterChanges != round.changes {
			t.Errorf("round %d: master %q after %d changes, want %q and %d", i, guid, got.MasterChanges, round.guid, round.changes)
		}
	}
}
