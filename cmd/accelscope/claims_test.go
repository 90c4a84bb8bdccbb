// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// claimServer is a kubelet with one pod, whose claim has GPU 3 and a MIG device of GPU 6.
type claimServer struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
}

func (claimServer) List(
	context.Context, *podresourcesv1.ListPodResourcesRequest,
) (*podresourcesv1.ListPodResourcesResponse, error) {
	share := "b2a0d5f4-shared"
	device := func(name string, share *string) *podresourcesv1.ClaimResource {
		return &podresourcesv1.ClaimResource{
			DriverName: "gpu.nvidia.com", PoolName: "node", DeviceName: name, ShareId: share,
			CdiDevices: []*podresourcesv1.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=u-" + name}},
		}
	}
	return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{{
		Namespace: "ml", Name: "train-0",
		Containers: []*podresourcesv1.ContainerResources{{
			Name: "main",
			DynamicResources: []*podresourcesv1.DynamicResource{{
				ClaimName: "gpus", ClaimNamespace: "ml", ClaimResources: []*podresourcesv1.ClaimResource{
					device("gpu-3", &share), device("gpu-6-mig-3g40gb-9-0", nil),
				},
			}},
		}},
	}}}, nil
}

func (claimServer) GetAllocatableResources(
	context.Context, *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	return &podresourcesv1.AllocatableResourcesResponse{}, nil
}

// claimedGPU3 is the CDI specification of GPU 3 for the claim.
const claimedGPU3 = `{"kind": "k8s.gpu.nvidia.com/claim", "devices": [
	{"name": "u-gpu-3", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia3"}]}}]}`

// TestClaimsAndJobs runs the program on a fake node with eight GPUs, two of them split into MIG devices: a pod with a
// resource claim, whose CDI specifications are in /etc and /run of the node, mounted as in the DaemonSet, and three Slurm
// jobs. One of these names the MIG device of the pod in its environment.
func TestClaimsAndJobs(t *testing.T) {
	binary, library := buildNVML(t)
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	servePodResources(t, socket, claimServer{})
	var mig string
	run := t.TempDir()
	n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
		caps, err := os.ReadFile(filepath.Join(n.ProcFS(), "driver/nvidia/capabilities/gpu6/mig/gi"+n.Get("6:0", "nvmlDeviceGetGpuInstanceId")+"/ci0/access"))
		if err != nil {
			t.Fatal(err)
		}
		var minor int
		if _, err := fmt.Sscanf(string(caps), "DeviceFileMinor: %d", &minor); err != nil {
			t.Fatal(err)
		}
		mig = n.UUID("6:0")
		files := map[string]string{
			"etc/cdi/gpu-3.json": claimedGPU3,
			"hostrun/cdi/k8s.gpu.nvidia.com-claim_u.yaml": fmt.Sprintf(`cdiVersion: 0.7.0
kind: k8s.gpu.nvidia.com/claim
devices:
- name: u-gpu-6-mig-3g40gb-9-0
  containerEdits: {deviceNodes: [{path: /dev/nvidia6}, {path: /dev/nvidia-caps/nvidia-cap%d, major: 236, minor: %d}]}
containerEdits: {deviceNodes: [{path: /dev/nvidiactl}]}
`, minor, minor),
			"proc/devices": "Character devices:\n195 nvidia\n236 nvidia-caps\n",
			"proc/driver/nvidia/gpus/" + nvml.Address(5) + "/numa_status": "Node: 1\nStatus: online\n", // as on GH200
		}
		for job, uuid := range map[int]string{71: nvml.UUID(2), 72: n.UUID("6:0"), 73: n.UUID("7:1")} {
			step := fmt.Sprintf("system.slice/slurmstepd.scope/job_%d/step_0/user/task_0", job)
			pid := 900_000 + job
			files["sys/fs/cgroup/"+step+"/cgroup.procs"] = fmt.Sprintln(pid)
			files[fmt.Sprintf("proc/%d/status", pid)] = "Name:\tpython\nUid:\t1234\t1234\t1234\t1234\n"
			files[fmt.Sprintf("proc/%d/cgroup", pid)] = "0::/" + step + "\n"
			files[fmt.Sprintf("proc/%d/environ", pid)] = "SLURM_JOB_GPUS=0\x00CUDA_VISIBLE_DEVICES=" + uuid + "\x00"
		}
		for name, text := range files {
			if rest, ok := strings.CutPrefix(name, "hostrun/"); ok {
				writeBelow(t, run, rest, text)
			} else {
				writeBelow(t, n.Dir, name, text)
			}
		}
	}, "--collector.kubelet", "--kubelet.pod-resources="+socket, "--path.run="+run)
	defer ends(t, n.stop)

	const pod = "ml/train-0/main"
	want := map[string]float64{
		pod + " " + nvml.UUID(3) + " kubelet gpus b2a0d5f4-shared": 1,
		pod + " " + mig + " kubelet gpus ":                         1,
		"slurm:71 " + nvml.UUID(2) + " environment  ":              1,
		"slurm:73 " + n.UUID("7:1") + " environment  ":             1,
	}
	e := n.until(t, "claims and jobs have GPUs", func(e exposition) bool {
		return maps.Equal(e.by("container_gpu_allocated", "workload", "uuid", "method", "claim", "share"), want)
	})
	if modes := e.by("gpu_mode", "uuid", "mode", "value"); modes[nvml.UUID(5)+" numa enabled"] != 1 || modes[nvml.UUID(4)+" numa enabled"] != 0 {
		t.Errorf("a GPU whose memory is a NUMA node: %v", e.only("gpu_mode"))
	}
	idle := e.by("container_gpu_processes", "workload", "uuid")
	for _, key := range []string{pod + " " + mig, "slurm:71 " + nvml.UUID(2)} {
		if v, known := idle[key]; !known || v != 0 {
			t.Errorf("processes of %s: %v, %v", key, v, known)
		}
	}
	// 6 whole GPUs and 6 MIG devices, 2 of them allocated by the kubelet.
	if d := cmp.Diff(map[string]float64{"": 100 * 2.0 / 12}, e.by("node_k8s_gpu_allocation_rate")); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// writeBelow writes a file and its directories.
func writeBelow(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// servePodResources serves PodResources until the test ends.
func servePodResources(t *testing.T, socket string, l podresourcesv1.PodResourcesListerServer) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, l)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
}
