// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/openapi"
)

// judged requests the verdicts of a sensor, compares the answer with the description, and returns the verdicts as SEVERITY NAME SUBJECT,
// and the time of their refresh.
func judged(t *testing.T, url string) (found []string, at time.Time) {
	t.Helper()
	code, header, body := get(t, url+api.VerdictsPath, "application/json")
	text, err := os.ReadFile("../../pkg/api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := openapi.Load(t, text).Check(t, api.VerdictsPath, code, header, []byte(body)); err != nil {
		t.Error(err)
	}
	var answer struct {
		Data struct {
			At       time.Time
			Verdicts []struct {
				Severity, Name string
				Subject        struct{ Name string }
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("%d %v: %s", code, err, body)
	}
	for _, v := range answer.Data.Verdicts {
		found = append(found, strings.Join([]string{v.Severity, v.Name, v.Subject.Name}, " "))
	}
	return found, answer.Data.At
}

// nextRefresh waits until a request is answered from a later refresh than last. Nothing else asks, so this is the next refresh.
func nextRefresh(t *testing.T, url string, last time.Time) (found []string, at time.Time) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if found, at = judged(t, url); !at.Equal(last) {
			return found, at
		}
	}
	t.Fatal("no refresh in a minute")
	return nil, at
}

// testVerdicts takes the link of a port of a fake node down, and makes it slow: the verdict is there by the second refresh, and gone when
// the link is as before.
func testVerdicts(t *testing.T, binary string) {
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{ComputeHCAs: 2, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	_, args := fakeNode(t)
	args = append(args, "--path.sysfs="+m.SysFS(), "--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS(), "--no-collector.pci")
	set := func(name, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(m.Dir, m.HCAs[0].PortDir, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := m.HCAs[0].Name + "/1"
	url, stop := start(t, binary, args...)
	defer ends(t, stop)
	ready(t, url)
	before, at := judged(t, url)
	if len(before) != 1 || before[0] != "ok NothingWrong node" {
		t.Fatalf("at first: %q", before)
	}
	set("state", "1: DOWN")
	set("phys_state", "3: Disabled")
	down, _ := nextRefresh(t, url, at)
	if d := cmp.Diff([]string{"critical RDMAPortDown " + port}, down); d != "" {
		t.Errorf("link down: %s", d)
	}
	out, err := child.Command(t.Context(), binary, "top", "--once", "--interval=100ms", "--url="+url+"/metrics").CombinedOutput()
	if first, _, _ := strings.Cut(string(out), "\n"); err != nil || !strings.Contains(first, "RDMAPortDown") || !strings.Contains(first, port) {
		t.Errorf("top: %v\n%s", err, out)
	}
	set("state", "4: ACTIVE")
	set("phys_state", "5: LinkUp")
	set("rate", "100 Gb/sec (4X EDR)")
	_, at = judged(t, url)
	slow, at := nextRefresh(t, url, at)
	if d := cmp.Diff([]string{"warning RDMALinkDegraded " + port}, slow); d != "" {
		t.Errorf("link slow: %s", d)
	}
	set("rate", "400 Gb/sec (4X NDR)")
	if after, _ := nextRefresh(t, url, at); !slices.Equal(after, before) {
		t.Errorf("link as before: %q", after)
	}
}
