// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/fakenode"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// fleetNodes is the number of nodes: with those that the generator makes sick, gpu0021 to gpu0025. fleetJobs are the nodes of a job.
const fleetNodes, fleetJobs = 26, 8

// foreign is the name of a pod that tries to load a picture.
var foreign = fakenode.Hostile()[1].Pod

// simulated returns the metrics of a SIMULATED node that the generator of tests/suites/fleet varies: two HCAs, two GPUs, a job with completions, one
// with an idle GPU, and a workload with a hostile name.
func simulated() string {
	var b strings.Builder
	label := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	b.WriteString("# TYPE accelscope_build_info gauge\naccelscope_build_info{version=\"1\"} 1\n")
	pods := []string{"llama", "idle", label.Replace(foreign)}
	family := func(kind, name string, lines ...string) {
		fmt.Fprintf(&b, "# TYPE %s %s\n", name, kind)
		for _, l := range lines {
			b.WriteString(name + l + "\n")
		}
	}
	of := func(i int, more string) string {
		return fmt.Sprintf(`{workload="ml/%s/main",namespace="ml",pod="%s",container="main",container_id="%d%s`, pods[i], pods[i], i, `"`) + more + "}"
	}
	family("gauge", "accelscope_workload_info", of(0, `,job_kind="JobSet",job_name="j"`)+" 1", of(1, `,job_kind="Job",job_name="j"`)+" 1",
		of(2, `,job_kind="Job",job_name="j"`)+" 1")
	family("gauge", "gpu_info", `{gpu_id="0",uuid="GPU-a",vendor="nvidia"} 1`, `{gpu_id="1",uuid="GPU-b",vendor="nvidia"} 1`)
	family("gauge", "gpu_health", `{gpu_id="0",uuid="GPU-a"} 1`, `{gpu_id="1",uuid="GPU-b"} 1`)
	family("gauge", "gpu_problem", `{gpu_id="0",uuid="GPU-a",problem="ecc_uncorrected"} 0`)
	family("gauge", "container_gpu_allocated", of(0, `,gpu_id="0",uuid="GPU-a",method="kubelet"`)+" 1", of(1, `,gpu_id="1",uuid="GPU-b",method="kubelet"`)+" 1")
	family("gauge", "container_gpu_processes", of(0, `,gpu_id="0",uuid="GPU-a"`)+" 4", of(1, `,gpu_id="1",uuid="GPU-b"`)+" 0")
	rank := `,communicator="world",rank="0"`
	family("counter", "container_collective_launches_total", of(0, rank+`,library="nccl",operation="all_reduce"`)+" 1")
	family("gauge", "container_collective_last_launch_timestamp_seconds", of(0, rank)+" 1")
	family("gauge", "container_collective_communicator_info", of(0, rank+`,library="nccl",nranks="8",parent="",version="2.28.9"`)+" 1")
	family("gauge", "container_collective_coverage", of(0, `,reason="complete"`)+" 1")
	ports := func(kind, name, more, value string) {
		family(kind, name, `{device="mlx5_0",port="1"`+more+"} "+value, `{device="mlx5_1",port="1"`+more+"} "+value)
	}
	family("gauge", "infiniband_device_info", `{device="mlx5_0",node_guid="0x946dae0300123450",is_vf="false"} 1`,
		`{device="mlx5_1",node_guid="0x946dae0300123451",is_vf="false"} 1`)
	family("gauge", "infiniband_port_state", `{device="mlx5_0",port="1",state="active"} 1`, `{device="mlx5_0",port="1",state="down"} 0`,
		`{device="mlx5_1",port="1",state="active"} 1`, `{device="mlx5_1",port="1",state="down"} 0`)
	ports("gauge", "infiniband_port_rate_bytes_per_second", "", "5e10")
	ports("counter", "infiniband_port_transmit_data_bytes_total", "", "1")
	ports("counter", "infiniband_port_receive_data_bytes_total", "", "1")
	ports("counter", "infiniband_port_errors_total", `,type="symbol"`, "0")
	ports("counter", "rdma_port_out_of_sequence_total", "", "0")
	for _, direction := range []string{"transmit", "receive"} {
		family("counter", "container_rdma_"+direction+"_bytes_total", of(0, `,device="mlx5_0",method="qp_counter"`)+" 1",
			of(0, `,device="mlx5_1",method="qp_counter"`)+" 1")
	}
	family("histogram", "container_rdma_completion_duration_seconds")
	for _, le := range []string{"1e-06", "1e-05", "0.001", "+Inf"} {
		b.WriteString("container_rdma_completion_duration_seconds_bucket" + of(0, `,device="mlx5_0",method="uprobe",opcode="write",le="`+le+`"`) + " 1\n")
	}
	b.WriteString("container_rdma_completion_duration_seconds_sum" + of(0, `,device="mlx5_0",method="uprobe",opcode="write"`) + " 1\n")
	b.WriteString("container_rdma_completion_duration_seconds_count" + of(0, `,device="mlx5_0",method="uprobe",opcode="write"`) + " 1\n")
	return b.String()
}

var (
	fleetMu  sync.Mutex
	fleetURL string
	fleetErr error
	fleetEnd []func()
)

// fleetSite returns the address of accelscope fleet, which reads a real Prometheus with the series of simulated nodes. Both are started once.
func fleetSite(t testing.TB) string {
	t.Helper()
	fleetMu.Lock()
	defer fleetMu.Unlock()
	if fleetURL == "" && fleetErr == nil {
		fleetURL, fleetErr = startFleet(fleetNodes, fleetJobs, 2*time.Second)
	}
	if fleetErr != nil {
		t.Fatal(fleetErr)
	}
	return fleetURL
}

// endFleet ends what fleetSite started.
func endFleet() {
	for _, end := range fleetEnd {
		end()
	}
}

// startFleet starts a Prometheus, which evaluates its rules at an interval, and accelscope fleet. Both end with the tests.
func startFleet(nodes, jobs int, every time.Duration) (string, error) {
	dir, err := os.MkdirTemp("", "fleetpages")
	if err != nil {
		return "", err
	}
	fleetEnd = append(fleetEnd, func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "node.prom")
	if err := os.WriteFile(file, []byte(simulated()), 0o600); err != nil {
		return "", err
	}
	generator, program := filepath.Join(dir, "fleet"), os.Getenv("ACCELSCOPE_BINARY") // make test-pages has built it
	builds := [][]string{{generator, "./tests/suites/fleet"}}
	if program == "" {
		program = filepath.Join(dir, "accelscope")
		builds = append(builds, []string{dir, "./cmd/..."})
	}
	for _, b := range builds {
		cmd := child.Command(context.Background(), "go", "build", "-o", b[0], b[1])
		cmd.Dir = "../../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0") // a free port
	if err != nil {
		return "", err
	}
	address := l.Addr().String()
	_ = l.Close()
	if _, err := begin(func(line string) (string, bool) { return line, strings.HasPrefix(line, "Prometheus: ") },
		generator, "-nodes", fmt.Sprint(nodes), "-job-nodes", fmt.Sprint(jobs), "-minutes", "20", "-listen", address, "-scrape", file, "-every", every.String()); err != nil {
		return "", err
	}
	listening, err := begin(func(line string) (string, bool) { return child.Address([]byte(line)) }, program, "fleet", "--prometheus=http://"+address, "--web.listen-address=127.0.0.1:0", "--log.format=json", "--fleet.node-url=http://{instance}/")
	return "http://" + listening, err
}

// startLimit is how long a program may take to start: a Prometheus with 1,000 nodes takes minutes.
const startLimit = 10 * time.Minute

// begin starts a program of the repository and returns what a line of its output says, when there is one.
func begin(found func(line string) (string, bool), name string, args ...string) (string, error) {
	program := child.Command(context.Background(), name, args...) // ends by a signal
	program.Dir = "../../.."
	out, in := io.Pipe()
	program.Stdout, program.Stderr = in, in
	if err := program.Start(); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	go func() {
		_ = program.Wait() // its output has the reason
		_ = in.Close()
		close(ended)
	}()
	fleetEnd = append([]func(){func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		<-ended
	}}, fleetEnd...)
	said := make(chan string, 1)
	var last []string
	go func() {
		defer close(said)
		once := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			last = append(last, lines.Text())
			if text, ok := found(lines.Text()); ok && !once {
				said <- text
				once = true
			}
		}
	}()
	select {
	case text, ok := <-said:
		if !ok {
			return "", fmt.Errorf("%s ended: %s", name, strings.Join(last, "\n"))
		}
		return text, nil
	case <-time.After(startLimit):
		return "", fmt.Errorf("%s prints nothing for %v", name, startLimit)
	}
}
