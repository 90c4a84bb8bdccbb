// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

// specification returns a specification as written by NVIDIA's DRA driver (claim.yaml), NVIDIA's container toolkit
// (toolkit.yaml) or a device plugin for HCAs (hca.json), or as observed elsewhere (observed-*.yaml):
// testdata/cdi/README.md.
func specification(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/cdi", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeTree(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, text)
	}
}

const (
	claimedGPU = "k8s.gpu.nvidia.com/claim=6a3f1c8e-2b7d-4f05-9c11-5d2e8f9a0b31-gpu-0"
	claimedMIG = "k8s.gpu.nvidia.com/claim=6a3f1c8e-2b7d-4f05-9c11-5d2e8f9a0b31-gpu-1-mig-1g10gb-19-0"
)

// claims returns a kubelet with a pod whose claim has these resources.
func claims(resources ...*podresourcesv1.ClaimResource) *lister {
	return &lister{
		list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
			return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{{
				Name: "train", Namespace: "ml",
				Containers: []*podresourcesv1.ContainerResources{{
					Name: "main",
					DynamicResources: []*podresourcesv1.DynamicResource{{
						ClaimName: "gpus", ClaimNamespace: "ml", ClaimResources: resources,
					}},
				}},
			}}}, nil
		},
		allocatable: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
			return &podresourcesv1.AllocatableResourcesResponse{}, nil
		},
	}
}

func resource(driver, device string, cdi ...string) *podresourcesv1.ClaimResource {
	r := &podresourcesv1.ClaimResource{DriverName: driver, PoolName: "node7", DeviceName: device}
	for _, name := range cdi {
		r.CdiDevices = append(r.CdiDevices, &podresourcesv1.CDIDevice{Name: name})
	}
	return r
}

func cdiSource(t *testing.T, l *lister) (s *Source, root string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveSocket(t, socket, l)
	root = t.TempDir()
	return open(t, Options{Socket: socket, CDI: []CDIDir{{root, "etc/cdi"}, {root, "var/run/cdi"}}}), root
}

// nodesOfClaims reads and returns the device nodes of each allocation, and the reason of the state of the specifications.
func nodesOfClaims(t *testing.T, s *Source) (nodes [][]string, reason string) {
	t.Helper()
	got, err := s.Read(limit(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range got.Allocations {
		nodes = append(nodes, a.Nodes)
	}
	state, reason := state(t, got, "cdi")
	if (state == model.StateOK) != (reason == "") {
		t.Errorf("state %s: %q", state, reason)
	}
	return nodes, reason
}

// TestClaimedDevices resolves the devices of claims to device nodes, with specifications made from the sources of their
// drivers.
func TestClaimedDevices(t *testing.T) {
	share := "5c0e"
	shared := resource("gpu.nvidia.com", "gpu-0", claimedGPU)
	shared.ShareId = &share
	s, root := cdiSource(t, claims(
		shared, resource("gpu.nvidia.com", "gpu-1-mig-1g10gb-19-0", claimedMIG),
		resource("dra.net", "pci-0000-8a-00-0"), resource("rdma.example.com", "hca-1", "nvidia.com/net-rdma=0000:3b:00.2"),
		&podresourcesv1.ClaimResource{CdiDevices: []*podresourcesv1.CDIDevice{ // Kubernetes before 1.31
			{Name: "nvidia.com/gpu=0"}, {Name: "nvidia.com/gpu=1:0"},
		}},
	))
	writeTree(t, root, map[string]string{
		"etc/cdi/hca.json":    specification(t, "hca.json"),
		"etc/cdi/notes.txt":   "no specification",
		"run/cdi/nvidia.yaml": specification(t, "toolkit.yaml"),
		"run/cdi/k8s.gpu.nvidia.com-claim_6a3f1c8e-2b7d-4f05-9c11-5d2e8f9a0b31.yaml": specification(t, "claim.yaml"),
	})
	if err := os.Mkdir(filepath.Join(root, "var"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil { // as on a node
		t.Fatal(err)
	}
	got, err := s.Read(limit(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	mig := []string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"}
	alloc := func(resource, id, share string, nodes ...string) model.Allocation {
		return model.Allocation{
			Namespace: "ml", Pod: "train", Container: "main", Claim: "gpus", Resource: resource, ID: id, ShareID: share, Nodes: nodes,
		}
	}
	if d := cmp.Diff([]model.Allocation{
		alloc("gpu.nvidia.com/node7", "gpu-0", "5c0e", "/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"),
		alloc("gpu.nvidia.com/node7", "gpu-1-mig-1g10gb-19-0", "", mig...),
		alloc("dra.net/node7", "pci-0000-8a-00-0", ""),
		alloc("rdma.example.com/node7", "hca-1", "", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"),
		alloc("nvidia.com/gpu", "nvidia.com/gpu=0", "", "/dev/nvidia0", "/dev/dri/card1"),
		alloc("nvidia.com/gpu", "nvidia.com/gpu=1:0", "", mig...),
	}, got.Allocations); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if st, reason := state(t, got, "cdi"); st != model.StateOK {
		t.Errorf("%s: %s", st, reason)
	}
}

// TestNodesOfAccumulatedDevices: a claimed device has only its own device nodes, although Kubernetes 1.35 lists it with
// the CDI devices of the driver's devices before it.
func TestNodesOfAccumulatedDevices(t *testing.T) {
	const first, second, hca = "nvidia.com/gpu=0", "nvidia.com/gpu=1:0", "nvidia.com/net-rdma=0000:3b:00.2"
	for name, resources := range map[string][]*podresourcesv1.ClaimResource{
		"accumulated": {
			resource("gpu.nvidia.com", "gpu-0", first), resource("rdma.example.com", "hca-1", hca), resource("gpu.nvidia.com", "gpu-1", first, second),
		},
		"each its own": {
			resource("gpu.nvidia.com", "gpu-0", first), resource("rdma.example.com", "hca-1", hca), resource("gpu.nvidia.com", "gpu-1", second),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, root := cdiSource(t, claims(resources...))
			writeTree(t, root, map[string]string{
				"etc/cdi/hca.json": specification(t, "hca.json"), "etc/cdi/nvidia.yaml": specification(t, "toolkit.yaml"),
			})
			nodes, _ := nodesOfClaims(t, s)
			if d := cmp.Diff([][]string{
				{"/dev/nvidia0", "/dev/dri/card1"},
				{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"},
				{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"},
			}, nodes); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
	t.Run("shares of one device", func(t *testing.T) {
		s, root := cdiSource(t, claims(resource("gpu.nvidia.com", "gpu-0", first), resource("gpu.nvidia.com", "gpu-0", first)))
		writeTree(t, root, map[string]string{"etc/cdi/nvidia.yaml": specification(t, "toolkit.yaml")})
		nodes, _ := nodesOfClaims(t, s)
		both := []string{"/dev/nvidia0", "/dev/dri/card1"}
		if d := cmp.Diff([][]string{both, both}, nodes); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

// TestObservedSpecifications resolves claims with specifications observed on other nodes.
func TestObservedSpecifications(t *testing.T) {
	const (
		mig = "c8593c85-440d-4156-b199-aea592ff83df"
		gpu = "b3f7d9bb-0000-4000-8000-000000000000"
	)
	s, root := cdiSource(t, claims(
		resource("gpu.nvidia.com", "gpu-0-mig-1g18gb-19-0", "k8s.gpu.nvidia.com/claim="+mig+"-gpu-0-mig-1g18gb-19-0"),
		resource("gpu.nvidia.com", "gpu-0", "k8s.gpu.nvidia.com/claim="+gpu+"-gpu-0"),
	))
	writeTree(t, root, map[string]string{
		"var/run/cdi/k8s.gpu.nvidia.com-claim_" + mig + ".yaml": specification(t, "observed-mig.yaml"),
		"var/run/cdi/k8s.gpu.nvidia.com-claim_" + gpu + ".yaml": specification(t, "observed-gpu.yaml"),
	})
	nodes, reason := nodesOfClaims(t, s)
	if d := cmp.Diff([][]string{
		{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap102", "/dev/nvidia-caps/nvidia-cap103"},
		{"/dev/nvidia0"}, // not nvidiactl and nvidia-uvm, which all claims have
	}, nodes); d != "" || reason != "" {
		t.Errorf("%s%s", d, reason)
	}
}

// TestSpecificationsChange: changed, new and removed files are noticed, and other files are not read again.
func TestSpecificationsChange(t *testing.T) {
	spec := func(node string) string {
		return fmt.Sprintf(`{"kind": "a.com/gpu", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": %q}]}}]}`, node)
	}
	s, root := cdiSource(t, claims(resource("gpu.a.com", "x", "a.com/gpu=0")))
	check := func(what string, want []string, reason string) {
		t.Helper()
		nodes, got := nodesOfClaims(t, s)
		if d := cmp.Diff([][]string{want}, nodes); d != "" || !strings.Contains(got, reason) || (reason == "") != (got == "") {
			t.Errorf("%s: %s%q, want %q", what, d, got, reason)
		}
	}
	check("no directories", nil, `no CDI specification has the claimed device "a.com/gpu=0"`)
	writeTree(t, root, map[string]string{"etc/cdi/a.yaml": spec("/dev/nvidia0")})
	check("a new file", []string{"/dev/nvidia0"}, "")
	writeTree(t, root, map[string]string{"var/run/cdi/a.json": spec("/dev/nvidia1")})
	check("a directory of higher priority", []string{"/dev/nvidia1"}, "")

	path := filepath.Join(root, "var/run/cdi/a.json")
	s.cdi.files[path].devices["a.com/gpu=0"][0] = "/dev/kept"
	check("the same file", []string{"/dev/kept"}, "")
	writeTree(t, root, map[string]string{"var/run/cdi/new": spec("/dev/nvidia2")})
	if err := os.Rename(filepath.Join(root, "var/run/cdi/new"), path); err != nil {
		t.Fatal(err)
	}
	check("a replaced file", []string{"/dev/nvidia2"}, "")
	writeTree(t, root, map[string]string{"var/run/cdi/b.json": spec("/dev/nvidia3")})
	check("two files with the device", []string{"/dev/nvidia0"}, `several files have the device "a.com/gpu=0"`)
	for _, name := range []string{"a", "b"} {
		if err := os.Remove(filepath.Join(root, "var/run/cdi", name+".json")); err != nil {
			t.Fatal(err)
		}
	}
	check("removed files", []string{"/dev/nvidia0"}, "")
}

// TestNoClaims: without claims of CDI devices, specifications are not read and have no state.
func TestNoClaims(t *testing.T) {
	s, root := cdiSource(t, claims(resource("dra.net", "eth1")))
	writeTree(t, root, map[string]string{"etc/cdi/a.yaml": "nonsense"})
	got, err := s.Read(limit(t, time.Minute))
	if err != nil || len(got.Allocations) != 1 || len(got.DeviceStates) != 4 || s.cdi.files != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestHostileSpecifications: an invalid file drops only its own devices. Files outside of the root directory and
// devices are not opened.
func TestHostileSpecifications(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.yaml")
	writeFile(t, secret, specification(t, "toolkit.yaml"))
	var bomb strings.Builder // 9 levels of 10 aliases each
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), i-1)
	}
	bomb.WriteString("kind: a.com/gpu\ndevices: [{name: x, containerEdits: {env: *a8}}]\n")
	for name, c := range map[string]struct {
		place  func(t *testing.T, path, root string)
		reason string
	}{
		"no YAML":        {text("\x00\xff{"), "no CDI specification"},
		"other types":    {text("kind: [a]\ndevices: 7\n"), "no CDI specification"},
		"aliases":        {text(bomb.String()), "no CDI specification"},
		"deep":           {text(strings.Repeat("[", 100_000)), "no CDI specification"},
		"null node":      {text("kind: a.com/gpu\ndevices: [{name: x, containerEdits: {deviceNodes: [null]}}]\n"), "without a path"},
		"hostile name":   {text("kind: a.com/gpu\ndevices: [{name: \"x\\ny\"}]\n"), "invalid name"},
		"a device twice": {text("kind: a.com/gpu\ndevices: [{name: x}, {name: x}]\n"), "two devices"},
		"too large":      {text(strings.Repeat("#", maxSpecSize+1)), "larger than"},
		"a long path": {
			text("kind: a.com/gpu\ndevices: [{name: x, containerEdits: {deviceNodes: [{path: /dev/" + strings.Repeat("x", 300) + "}]}}]\n"),
			"more than 256 bytes",
		},
		"too many devices": {text("kind: a.com/gpu\ndevices: [" + strings.Repeat("{name: x},", maxSpecDevices+1) + "]\n"), "more than 4096 devices"},
		"too many nodes": {
			text("kind: a.com/gpu\ndevices: [{name: x, containerEdits: {deviceNodes: [" + strings.Repeat("{path: /dev/x},", maxSpecNodes+1) + "]}}]\n"),
			"more than 256 device nodes",
		},
		"a link outside": {func(t *testing.T, path, _ string) { symlink(t, secret, path) }, "no such file"},
		"relative link outside": {
			func(t *testing.T, path, _ string) { symlink(t, strings.Repeat("../", 30)+secret, path) }, "no such file",
		},
		"a link to itself": {func(t *testing.T, path, _ string) { symlink(t, filepath.Base(path), path) }, "too many levels"},
		"a FIFO": {func(t *testing.T, path, _ string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		"a directory": {func(t *testing.T, path, _ string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			s, root := cdiSource(t, claims(resource("gpu.nvidia.com", "gpu-0", claimedGPU)))
			writeTree(t, root, map[string]string{"etc/cdi/good.yaml": specification(t, "claim.yaml")})
			c.place(t, filepath.Join(root, "etc/cdi/bad.yaml"), root)
			for range 2 { // an unchanged file has the same error
				nodes, reason := nodesOfClaims(t, s)
				if len(nodes) != 1 || len(nodes[0]) != 3 || !strings.Contains(reason, c.reason) || !strings.Contains(reason, "bad.yaml") {
					t.Errorf("%v, %q", nodes, reason)
				}
			}
		})
	}
	t.Run("too many files", func(t *testing.T) {
		s, root := cdiSource(t, claims(resource("gpu.nvidia.com", "gpu-0", claimedGPU)))
		writeTree(t, root, map[string]string{"etc/cdi/good.yaml": specification(t, "claim.yaml")})
		for i := range maxSpecs {
			writeFile(t, filepath.Join(root, "etc/cdi", fmt.Sprint(i)), "")
		}
		if nodes, reason := nodesOfClaims(t, s); nodes[0] != nil || !strings.Contains(reason, "more than 4096 files") {
			t.Errorf("%v, %q", nodes, reason)
		}
	})
}

func text(content string) func(t *testing.T, path, root string) {
	return func(t *testing.T, path, _ string) { writeFile(t, path, content) }
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, name := range []string{"claim.yaml", "toolkit.yaml", "hca.json", "observed-mig.yaml", "observed-gpu.yaml"} {
		f.Add([]byte(specification(f, name)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		devices, err := parseSpec(b)
		if err != nil && devices != nil {
			t.Error("devices and an error")
		}
		for name, nodes := range devices {
			for _, node := range nodes {
				if !strings.HasPrefix(node, "/dev/") || len(node) > maxNodePath || !strings.Contains(name, "=") {
					t.Errorf("%q: %q", name, node)
				}
			}
		}
	})
}
