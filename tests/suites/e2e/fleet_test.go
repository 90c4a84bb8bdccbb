// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// fleetScript runs in each guest: Soft-RoCE on the cable, the sensor, and programs of a Slurm job. A line of standard input
// starts a program: NAME ARGUMENTS. What programs print begins with their name.
const fleetScript = `
address=$1 job=/sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0
echo 0 >/proc/sys/net/ipv6/conf/cable/accept_dad
ip address add "$address/24" dev cable
ip link set cable up
modprobe -a crc32_generic
modprobe -a rdma_rxe ib_uverbs
rdma link add rxe0 type rxe netdev cable
mkdir -p "$job"
"$2" --node.name="$address" >"$3" 2>&1 &
while read -r name arguments; do
	(
		echo $BASHPID >"$job/cgroup.procs"
		until stdbuf -oL ibv_rc_pingpong -e -d rxe0 -g 1 -n 100000000 $arguments; do sleep 1; done
	) 2>&1 | sed -u "s/^/$name /" &
done
`

var slurmJob = fleet.JobName{Kind: "Slurm", Name: "4711"}

// fleetGuest is a guest with a sensor, which the host reaches at instance.
type fleetGuest struct {
	address, instance string
	stdin             *io.PipeWriter
	printed           lockedBuffer
}

// TestFleet compares the page of all nodes with two guests whose kernels are connected by Soft-RoCE: a real Prometheus
// scrapes their sensors, and a job has queue pairs between the guests and within one. The programs print how many they
// made.
func TestFleet(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "accelscope")
	if out, err := child.Command(t.Context(), "go", "build", "-o", filepath.Dir(binary), "github.com/accelscope/accelscope/cmd/...").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports := []int{freePort(t, "udp"), freePort(t, "udp")}
	a := startFleetGuest(t, binary, "10.80.0.1", vm.Cable{Port: ports[0], Peer: ports[1]})
	b := startFleetGuest(t, binary, "10.80.0.2", vm.Cable{Port: ports[1], Peer: ports[0]})
	rules := hasten(t, "../../../deploy/prometheus/rules")
	p := startPrometheus(t, freePort(t, "tcp"), rules, map[string]string{a.instance: a.instance, b.instance: b.instance})
	page := startFleetPage(t, binary, p.url)
	for _, g := range []*fleetGuest{a, b} {
		eventually(t, 6*time.Minute, func() error { return getJSON("http://"+g.instance+"/api/v1/peers", nil) })
	}

	programs := map[*fleetGuest][]string{
		a: {"first -p 18701", "second -p 18702"},
		b: {"third -p 18701 10.80.0.1", "fourth -p 18702 10.80.0.1", "fifth -p 18703", "sixth -p 18703 10.80.0.2"},
	}
	made := map[matrix.Pair]int{}
	instance := map[string]string{"::ffff:" + a.address: a.instance, "::ffff:" + b.address: b.instance}
	for g, lines := range programs {
		for _, line := range lines {
			if _, err := fmt.Fprintln(g.stdin, line); err != nil {
				t.Fatal(err)
			}
		}
	}
	for g, lines := range programs {
		for _, line := range lines {
			name, _, _ := strings.Cut(line, " ")
			made[matrix.Pair{From: g.instance, To: instance[g.remote(t, name)]}]++
		}
	}
	var want []matrix.Pair
	for pair, n := range made {
		pair.QueuePairs = n
		want = append(want, pair)
	}
	slices.SortFunc(want, func(x, y matrix.Pair) int { return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To)) })
	if len(want) != 3 {
		t.Fatalf("the programs printed %+v", want)
	}

	query := "?" + url.Values{"kind": {slurmJob.Kind}, "name": {slurmJob.Name}}.Encode()
	var got matrix.Matrix
	eventually(t, 3*time.Minute, func() error {
		got = matrix.Matrix{}
		if err := getJSON(page+"/api/v1/matrix"+query, &got); err != nil {
			return err
		}
		if diff := gocmp.Diff(want, got.Pairs); diff != "" {
			return fmt.Errorf("the pairs (-printed +page):\n%s", diff)
		}
		return nil
	})
	for _, n := range got.Nodes {
		if n != (matrix.Node{Name: n.Name, Peers: true, Addresses: true, Judged: true}) {
			t.Errorf("%+v", n)
		}
	}
	if len(got.Nodes) != 2 || len(got.Elsewhere)+len(got.NotAsked) > 0 {
		t.Errorf("%+v", got)
	}
	a.compare(t, binary, p, b)

	res, err := http.Get(page + "/job" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	html, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"Connected nodes", "Slurm/4711", a.instance, b.instance, "slurm:4711", `data-label="` + b.instance + `">2</td>`} {
		if !strings.Contains(string(html), text) {
			t.Errorf("the view of the job lacks %s", text)
		}
	}
}

// compare compares the page's data of the nodes, in the form in which top prints it, with the REST answers of their
// sensors.
func (g *fleetGuest) compare(t *testing.T, binary string, p *prometheus, other *fleetGuest) {
	t.Helper()
	var state fleet.State
	if err := json.Unmarshal([]byte(sh(t, binary, "top", "--prometheus="+p.url, "--once", "--json")), &state); err != nil {
		t.Fatal(err)
	}
	hcas, workloads := 0, 0
	for _, g := range []*fleetGuest{g, other} {
		var list struct{ Data []api.HCA }
		if err := getJSON("http://"+g.instance+"/rdma", &list); err != nil {
			t.Fatal(err)
		}
		hcas += len(list.Data)
		var peers []api.Peer
		if err := getJSON("http://"+g.instance+"/api/v1/peers", &peers); err != nil {
			t.Fatal(err)
		}
		members := map[string]bool{}
		for _, p := range peers {
			members[p.Workload+" "+p.ContainerID] = true
		}
		workloads += len(members)
	}
	if s := &state; s.Totals.Nodes != 2 || s.Totals.Down != 0 || s.Totals.Ports.All == nil || *s.Totals.Ports.All != hcas || *s.Totals.Ports.Up != hcas {
		t.Errorf("the totals are %+v, and the sensors list %d HCAs", s.Totals, hcas)
	}
	if len(state.Jobs) != 1 || state.Jobs[0].JobName != slurmJob || state.Jobs[0].Nodes != 2 || state.Jobs[0].Members != workloads {
		t.Errorf("the jobs are %+v, and the sensors list the queue pairs of %d workloads", state.Jobs, workloads)
	}
}

func startFleetGuest(t *testing.T, binary, address string, cable vm.Cable) *fleetGuest {
	t.Helper()
	port := freePort(t, "tcp")
	stdin, commands := io.Pipe()
	g := &fleetGuest{address: address, instance: fmt.Sprint("127.0.0.1:", port), stdin: commands}
	share := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := vm.Run(ctx, vm.Options{
			Share: share, Forward: port, Cable: &cable, Stdin: stdin, Stdout: &g.printed, Timeout: 15 * time.Minute,
			Command: []string{"bash", "-c", fleetScript, "guest", address, binary, filepath.Join(share, "accelscope.log")},
		})
		ended <- err
	}()
	t.Cleanup(func() {
		_ = commands.Close()
		cancel()
		err := <-ended
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(share, "accelscope.log"))
			t.Logf("the guest %s: %v\n%s\n%s", address, err, g.printed.String(), log)
		}
	})
	return g
}

// remote returns the GID of the remote end that a program prints.
func (g *fleetGuest) remote(t *testing.T, name string) (gid string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + name + ` +remote address: .* GID (\S+)`)
	eventually(t, 2*time.Minute, func() error {
		found := line.FindStringSubmatch(g.printed.String())
		if found == nil {
			return fmt.Errorf("%s has printed no remote address", name)
		}
		gid = found[1]
		return nil
	})
	return gid
}

func startFleetPage(t *testing.T, binary, prometheus string) string {
	t.Helper()
	address := fmt.Sprint("127.0.0.1:", freePort(t, "tcp"))
	log := &lockedBuffer{}
	cmd := child.Command(context.Background(), binary, "fleet", "--prometheus="+prometheus, "--web.listen-address="+address, "--fleet.sensor-url=http://{instance}/")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the page ends with %v:\n%s", err, log)
		}
	})
	return "http://" + address
}

// getJSON reads an answer, into nothing if value is nil.
func getJSON(address string, value any) error {
	res, err := http.Get(address)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", address, res.Status, text)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(text, value)
}

func freePort(t *testing.T, network string) int {
	t.Helper()
	if network == "udp" {
		l, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.LocalAddr().(*net.UDPAddr).Port
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
