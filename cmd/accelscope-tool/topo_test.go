// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/tests/fixtures"
)

func topoOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, log bytes.Buffer
	err := run(t.Context(), append([]string{"topo"}, args...), &out, &log)
	return out.String(), err
}

// topoNode returns a node with a workload that uses a GPU with the HCA of another NUMA node, and has a hostile name.
func topoNode() api.Known {
	port := []model.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", RateBits: 400e9}}
	function := func(numa string, link model.PCILink, path ...string) model.PCIFunction {
		return model.PCIFunction{Address: path[len(path)-1], NUMANode: numa, Path: path, PCIEnd: model.PCIEnd{Link: link}}
	}
	full := model.PCILink{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}
	facts := model.Snapshot{
		GPUs: []model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:14:00.0"}},
		HCAs: []model.HCA{
			{Name: "mlx5_0", PCIAddress: "0000:13:00.0", Ports: port},
			{Name: "mlx5_1", PCIAddress: "0000:93:00.0", Ports: port},
			{Name: "mlx5_2", PCIAddress: "0000:a3:00.0"},
		},
		PCI: []model.PCIFunction{
			function("0", full, "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"),
			function("0", model.PCILink{Speed: 2.5e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}, "pci0000:10", "0000:10:01.0", "0000:11:00.0",
				"0000:12:01.0", "0000:14:00.0"),
			function("1", full, "pci0000:90", "0000:90:01.0", "0000:93:00.0"),
		},
	}
	known := api.Known{
		Facts: facts, States: []model.SourceState{{Source: "pci", State: model.StateOK}, {Source: "rdma", State: model.StateOK}},
		Shares: attribution.Attribution{
			Owners: []identity.Owner{{}, {Workload: "docker:\x1b[2J\tx"}, {Workload: "ml/train-0/main"}},
			GPUs:   []attribution.GPUShare{{Owner: 1, GPU: &facts.GPUs[0], Processes: 1}},
			Objects: []attribution.ObjectShare{
				{Owner: 1, Device: "mlx5_1", Type: model.QP, Current: 2}, {Owner: 2, Device: "mlx5_1", Type: model.QP, Current: 2},
			},
		},
	}
	known.Placement = placement.NewRefresh(&known.Facts, &known.Shares)
	return known
}

func TestTopo(t *testing.T) {
	known := func() api.Known { return topoNode() }
	url := serveAPI(t, known, nil)
	const want = `        GPU0  mlx5_0  mlx5_1  mlx5_2  NUMA  PCIE                         WORKLOADS
GPU0    X     PIX     SYS     -       0     2.5 GT/s x16 of 32 GT/s x16  docker:?[2J?x
mlx5_0  PIX   X       SYS     -       0     32 GT/s x16                  -
mlx5_1  SYS   SYS     X       -       1     32 GT/s x16                  docker:?[2J?x, ml/train-0/main
mlx5_2  -     -       -       X       -     -                            -

GPU   HCA     THROUGH  REQUESTS  COMPLETIONS  IOMMU GROUPS      ACS OF HCA'S PORT     ACS OF GPU'S PORT
GPU0  mlx5_0  -        unknown   unknown      unknown, unknown  0000:12:00.0 unknown  0000:12:01.0 unknown

PROBLEM          WORKLOAD       DETAIL
other_numa_node  docker:?[2J?x  GPU 0: all HCAs that the workload uses are on another NUMA node; nearer are mlx5_0

Incomplete: not read: amdgpu, nvidia, intel is switched off
`
	got, err := topoOutput(t, "--url="+url+"/metrics")
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	if got, err = topoOutput(t, "--url="+url, "--workload=ml/train-0/main"); err != nil || strings.Contains(got, "docker") || strings.Contains(got, "PROBLEM") {
		t.Errorf("one workload: %v\n%s", err, got)
	}
	if got, err = topoOutput(t, "--url="+url, "--json"); err != nil || !strings.HasPrefix(got, `{"code":0,"data":{"devices":[`) {
		t.Errorf("JSON: %v %s", err, got)
	}
}

// TestTopoErrors has answers of others, and sensors that do not run: elsewhere, where the local sysfs does not help.
func TestTopoErrors(t *testing.T) {
	body := "<html>"
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
	t.Cleanup(other.Close)
	for _, answer := range []string{"<html>", "{}", `{"data": {"devices": [{"name": "x"}], "relations": []}}`, `[]`} {
		body = answer
		if out, err := topoOutput(t, "--url="+other.URL); err == nil || !strings.Contains(err.Error(), "not the answer of a sensor") || out != "" {
			t.Errorf("%s: %q %v", answer, out, err)
		}
	}
	if _, err := topoOutput(t, "--url=ftp://a:b@c/d"); err == nil || strings.Contains(err.Error(), "b@") {
		t.Errorf("%v", err)
	}
}

// TestTopoSysfs prints a fake sysfs while no sensor runs. It has HCAs, a VF, a GPU below the host bridge of the second HCA, and a BMC.
func TestTopoSysfs(t *testing.T) {
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{ComputeHCAs: 2, VFs: 1, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	hca, err := filepath.EvalSymlinks(filepath.Join(m.SysFS(), "class/infiniband", m.HCAs[1].Name, "device"))
	if err != nil {
		t.Fatal(err)
	}
	for address, files := range map[string]map[string]string{
		"0000:2b:00.0": {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "1"},
		"0000:2c:00.0": {"class": "0x030000", "vendor": "0x1a03", "device": "0x2000", "numa_node": "0"},
	} {
		dir := filepath.Join(filepath.Dir(hca), "0000:"+address[5:7]+":01.0", address)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		target, err := filepath.Rel(filepath.Join(m.SysFS(), "bus/pci/devices"), dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(m.SysFS(), "bus/pci/devices", address)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := topoOutput(t, "--url=http://127.0.0.1:1", "--path.sysfs="+m.SysFS())
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + got)
	rows := map[string][]string{}
	for line := range strings.Lines(got) {
		if w := strings.Fields(line); len(w) > 5 {
			rows[w[0]] = w
		}
	}
	if len(m.HCAs) != 3 || m.HCAs[2].PhysicalFn == "" || m.HCAs[0].NUMANode == m.HCAs[1].NUMANode {
		t.Fatalf("the fixture changed: %+v", m.HCAs)
	}
	if d := cmp.Diff([]string{"GPU0", "X", "SYS", "PHB", "SYS", "1", "-"}, rows["GPU0"]); d != "" {
		t.Error(d)
	}
	if row := rows[m.HCAs[0].Name]; len(row) < 5 || row[4] != "PIX" { // with its VF
		t.Errorf("%q", row)
	}
	if strings.Contains(got, "GPU1") || strings.Contains(got, "WORKLOADS") || !strings.Contains(got, "No sensor runs here") {
		t.Error("the BMC is a GPU, or owners are shown")
	}
	if got, err = topoOutput(t, "--url=http://127.0.0.1:1", "--path.sysfs="+t.TempDir()); err != nil || !strings.HasPrefix(got, "there is no GPU and no HCA\n") {
		t.Errorf("an empty sysfs: %q %v", got, err)
	}
}
