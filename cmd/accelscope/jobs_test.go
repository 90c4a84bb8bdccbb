// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// jobNode is a fake node in a network namespace of its own: two pods with a VF each, and GPUs for the first one.
type jobNode struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	fixtures.Manifest
	instance      string
	namespace     string // the file of its network namespace
	host, address net.IP // of the two ends of its network
	url           string
	pods          []jobPod
}

type jobPod struct {
	namespace, name string
	container       fixtures.Container
	vf              fixtures.HCA
	gpus            []string
}

// bumped is what each round adds to the counters of the VFs of a node, in words of four bytes: 1 GB and 2 GB.
var bumped = map[string]uint64{"n1": 250e6, "n2": 500e6}

// TestJobOverNodes runs a job on two nodes, each with a sensor in a network namespace of its own, and a real Prometheus that scrapes
// both and evaluates the rules of deploy/prometheus. JobSet ml/train has a pod with a VF and two GPUs on each node, one of them without a
// process; JobSet dev/train has the other VF. What the rules say of a job is compared with what was written into the nodes, and with
// the sum over the members without the join by job. Nodes, GPUs and kubelets are fakes; no work requests and no verbs are observed here.
func TestJobOverNodes(t *testing.T) {
	t.Parallel()
	root(t)
	binary, library := buildNVML(t)
	nodes := []*jobNode{startJobNode(t, binary, library, 1), startJobNode(t, binary, library, 2)}
	p := startPrometheus(t, nodes)

	// The VFs belong to their pods from the third refresh on.
	const sent, received = "container_rdma_transmit_bytes_total", "container_rdma_receive_bytes_total"
	for _, n := range nodes {
		eventuallyTrue(t, n.instance+" attributes the bytes of its VFs", func() bool {
			n.bump(t)
			e := scrape(t, n.url)
			bytes := e.by(sent, "namespace", "method")
			return bytes["ml port"] > 0 && bytes["dev port"] > 0 && e.sum("container_gpu_processes", "namespace", "ml") > 0
		})
	}
	const rounds = 20
	before := settledBytes(t, nodes, sent)
	for range rounds {
		for _, n := range nodes {
			n.bump(t)
		}
		time.Sleep(time.Second)
	}
	after := settledBytes(t, nodes, sent)
	for _, namespace := range []string{"ml", "dev"} {
		if got, want := after[namespace]-before[namespace], 4*rounds*float64(bumped["n1"]+bumped["n2"]); got != want {
			t.Errorf("the sensors say that the job in %s sent %v bytes, want %v", namespace, got, want)
		}
	}

	job := func(namespace string) string {
		return `{namespace="` + namespace + `",job_kind="JobSet",job_name="train"}`
	}
	const join = " * on (job, instance, workload, container_id) group_left (job_kind, job_name) instance_workload:accelscope_workload_info:job"
	for what, want := range map[string]float64{
		"job_name:container_gpu_allocated:count" + job("ml"):                               4,
		"job_name:container_gpu_allocated:used" + job("ml"):                                2,
		"job_name:container_gpu_allocated:idle" + job("ml"):                                2,
		"count(job_name:container_gpu_allocated:count)":                                    1,
		"count(instance_workload:accelscope_workload_info:job" + job("dev") + ")":          2,
		"count(job_name_method:" + strings.TrimSuffix(sent, "_total") + ":rate5m > 0)":     2, // no other job
		"sum(" + sent + `{namespace="ml"}` + join + ")":                                    after["ml"],
		"sum(" + sent + `{namespace="dev"}` + join + ")":                                   after["dev"],
		"count(max by (rank) (accelscope_workload_info" + job("ml") + "))":                 2,
		`count(accelscope_workload_info{workload="ml/train-0/main",rank="node-0-0"} == 1)`: 1,
	} {
		eventuallyTrue(t, fmt.Sprintf("%s is %v", what, want), func() bool {
			got := p.ask(t, what, time.Now(), 0)
			return len(got.Series) == 1 && got.Series[0].Value.Value == want
		})
	}

	// The rates of a job, at the time at which they were recorded. A scrape that was in progress then makes a difference later.
	for _, counter := range []string{sent, received} {
		record := "job_name_method:" + strings.TrimSuffix(counter, "_total") + ":rate5m"
		members := "sum(rate(" + counter + `{workload=~"ml/train-[01]/main"}[5m]))`
		eventuallyTrue(t, record+" is the sum over the members", func() bool {
			recorded := p.ask(t, "timestamp("+record+job("ml")+")", time.Now(), 0)
			if len(recorded.Series) != 1 {
				return false
			}
			at := time.UnixMilli(int64(recorded.Series[0].Value.Value * 1000))
			got, want := p.ask(t, record+job("ml"), at, 0), p.ask(t, members, at, 0)
			return len(got.Series) == 1 && len(want.Series) == 1 && want.Series[0].Value.Value > 0 &&
				got.Series[0].Value.Value == want.Series[0].Value.Value
		})
	}
	p.dashboard(t)
	p.fleet(t, nodes)
}

// settledBytes is jobBytes when no change of the counters is left to be read: a sensor shows the same values for a second.
func settledBytes(t *testing.T, nodes []*jobNode, counter string) (sum map[string]float64) {
	t.Helper()
	eventuallyTrue(t, counter+" does not change", func() bool {
		last := jobBytes(t, nodes, counter)
		time.Sleep(2 * time.Second)
		sum = jobBytes(t, nodes, counter)
		return maps.Equal(last, sum)
	})
	return sum
}

// jobBytes adds up what the sensors themselves say of the two jobs.
func jobBytes(t *testing.T, nodes []*jobNode, counter string) map[string]float64 {
	t.Helper()
	sum := map[string]float64{}
	for _, n := range nodes {
		for namespace, v := range scrape(t, n.url).by(counter, "namespace") {
			sum[namespace] += v
		}
	}
	return sum
}

func startJobNode(t *testing.T, binary, library string, number int) *jobNode {
	t.Helper()
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{
		ComputeHCAs: 1, VFs: 2, Containers: 2, ProcsPerContainer: 1, Services: 1, Seed: uint64(number),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &jobNode{Manifest: m, instance: fmt.Sprint("n", number)}
	n.network(t)
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.Own([][]int{m.Containers[0].PIDs, nil})
	for i := range 2 {
		if err := nvml.Bind(m.SysFS(), m.ProcFS(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	vfs := slices.DeleteFunc(slices.Clone(m.HCAs), func(h fixtures.HCA) bool { return h.PhysicalFn == "" })
	n.pods = []jobPod{
		{"ml", fmt.Sprint("train-", number-1), m.Containers[0], vfs[0], []string{nvml.UUID(0), nvml.UUID(1)}},
		{"dev", fmt.Sprint("train-", number-1), m.Containers[1], vfs[1], nil},
	}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	servePodResources(t, socket, n)
	kubelet := n.kubelet(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.url = "http://" + n.address.String() + ":9847"
	args := append([]string{"--net=" + n.namespace, "env"}, s.Environment()...)
	cmd := child.Command(t.Context(), "nsenter", append(args, binary,
		"--path.sysfs="+m.SysFS(), "--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS(), "--path.host="+m.Dir,
		"--no-collector.probe", "--no-collector.runtime", "--no-collector.node", "--no-collector.container", "--no-collector.access",
		"--no-collector.kernellog", "--gpu.nvml-library="+library, "--gpu.process-interval=1s",
		"--kubelet.pod-resources="+socket, "--kubelet.url="+kubelet, "--kubelet.token-file="+token, "--kubelet.interval=1s",
		"--gpu.control-socket="+filepath.Join(m.Dir, "socket"), "--kubelet.insecure-skip-verify", "--kubelet.insecure-send-token", "--node.name="+n.instance,
		"--web.listen-address="+strings.TrimPrefix(n.url, "http://"))...)
	var log lines
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", n.instance, log.String())
		}
	})
	eventuallyTrue(t, n.instance+" answers", func() bool {
		resp, err := http.Get(n.url + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return n
}

// network makes the network namespace of the node, with a link to the namespace of the test. The namespace and the link end with a
// process that ends with the test, however the test ends: what is left of a link takes the packets of the next test.
func (n *jobNode) network(t *testing.T) {
	t.Helper()
	holder := child.Command(t.Context(), "sleep", "infinity")
	holder.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	pid := strconv.Itoa(holder.Process.Pid)
	n.namespace = "/proc/" + pid + "/ns/net"
	link := "asj" + pid
	block := uint16(holder.Process.Pid) << 2 //nolint:gosec // a /30 of 198.18.0.0/16 (RFC 2544); another test at the same time has another one
	n.host = net.IPv4(198, 18, byte(block>>8), byte(block)|1)
	n.address = net.IPv4(198, 18, byte(block>>8), byte(block)|2)
	inside := []string{"nsenter", "--net=" + n.namespace}
	for _, args := range [][]string{
		{"ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid},
		{"ip", "addr", "add", n.host.String() + "/30", "dev", link},
		{"ip", "link", "set", link, "up"},
		append(slices.Clone(inside), "ip", "addr", "add", n.address.String()+"/30", "dev", "eth0"),
		append(slices.Clone(inside), "ip", "link", "set", "eth0", "up"),
	} {
		if out, err := child.Command(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
}

// bump adds to the counters of the ports.
func (n *jobNode) bump(t *testing.T) {
	t.Helper()
	if err := n.Bump(bumped[n.instance]); err != nil {
		t.Fatal(err)
	}
}

// List implements PodResources: the VFs and GPUs of the pods.
func (n *jobNode) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	out := &podresourcesv1.ListPodResourcesResponse{}
	for _, p := range n.pods {
		out.PodResources = append(out.PodResources, &podresourcesv1.PodResources{
			Namespace: p.namespace, Name: p.name, Containers: []*podresourcesv1.ContainerResources{{
				Name: "main", Devices: []*podresourcesv1.ContainerDevices{
					{ResourceName: "nvidia.com/gpu", DeviceIds: p.gpus}, {ResourceName: "rdma/vf", DeviceIds: []string{p.vf.PCIAddress}},
				},
			}},
		})
	}
	return out, nil
}

// GetAllocatableResources implements PodResources.
func (n *jobNode) GetAllocatableResources(
	context.Context, *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	return &podresourcesv1.AllocatableResourcesResponse{}, nil
}

// kubelet serves /pods as the kubelet does, and returns its URL in the network of the node.
func (n *jobNode) kubelet(t *testing.T) string {
	t.Helper()
	type object = map[string]any
	var items []object
	for _, p := range n.pods {
		items = append(items, object{
			"metadata": object{
				"name": p.name, "namespace": p.namespace, "uid": p.container.PodUID, "labels": object{
					"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "node",
					"jobset.sigs.k8s.io/job-index": "0", "batch.kubernetes.io/job-completion-index": strings.TrimPrefix(p.name, "train-"),
				},
				"ownerReferences": []object{{"apiVersion": "batch/v1", "kind": "Job", "name": "train-node-0", "controller": true}},
			},
			"status": object{"phase": "Running", "containerStatuses": []object{{
				"name": "main", "containerID": "containerd://" + p.container.ID, "state": object{"running": object{}},
			}}},
		})
	}
	text, err := json.Marshal(object{"items": items})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/pods" {
			_, _ = w.Write(text)
			return
		}
		_, _ = w.Write([]byte(`{"pods":[]}`)) // /stats/summary
	}))
	_ = server.Listener.Close()
	if server.Listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(n.host.String(), "0")); err != nil {
		t.Fatal(err)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// notHere are the panels and columns of the dashboard that need verbs, work requests, energy or collectives, which no fake node has.
var notHere = []string{
	"p99 completion", "p99 verbs", "Errors", "HCAs", "HCAs of the members", "p99 of completions by member", "p99 of verbs by member",
	"Errors by member", "Power of jobs", "Energy of jobs", "Ranks, the last to launch first", "Late by rank", "Wait per receive by member",
}

// dashboard runs the queries of the dashboard on jobs.
func (p *prometheus) dashboard(t *testing.T) {
	t.Helper()
	all, err := dashboards.Load("../../deploy/grafana")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(d dashboards.Dashboard) bool { return d.File == "jobs.json" })
	end := time.Now()
	for _, panel := range all[i].Panels {
		for n, q := range panel.Targets {
			length := end.Sub(p.began)
			if q.Instant {
				length = 0
			}
			expr := all[i].Expand(q.Expr, rates)
			answer := p.ask(t, expr, end, length)
			name := panel.Title
			if panel.Type == "table" && len(panel.Targets) > 1 {
				name = q.Legend
			}
			if missing := slices.Contains(notHere, name) || slices.Contains(notHere, panel.Title); answer.HasData() == missing {
				t.Errorf("%s, query %d (%s): data %v, want %v:\n%s", panel.Title, n, q.Legend, answer.HasData(), !missing, expr)
			}
		}
	}
}
