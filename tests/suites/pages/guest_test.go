// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/vm"
)

// liveNode is the demo's guest: the real program, a live RDMA stack (Soft-RoCE), two pods in containerd with traffic,
// and FAKE GPUs of a fake NVIDIA library. The browser is on this machine: emulated CPUs are too slow for it.
type liveNode struct {
	url   string
	stdin *io.PipeWriter

	mu  sync.Mutex
	out bytes.Buffer
}

func (n *liveNode) Write(text []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out.Write(text)
}

func (n *liveNode) printed(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(n.out.String(), text)
}

// bootLimit is how long the guest may take, on a busy machine, until its sensor has the traffic and GPUs of both pods.
const bootLimit = 6 * time.Minute

// live boots the guest and waits for the figures of its pods.
func live(t *testing.T) *liveNode {
	t.Helper()
	share := t.TempDir()
	library, err := nvml.Build(t.Context(), filepath.Join(share, "nvml"), false)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	stdin, commands := io.Pipe()
	n := &liveNode{url: fmt.Sprintf("http://127.0.0.1:%d", port), stdin: commands}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := filepath.Join(share, "accelscope.log")
	options := vm.Options{
		Devices: 2, Share: share, Forward: port, Stdin: stdin, Stdout: n, Timeout: bootLimit + 5*time.Minute, Env: []string{"NODE_NAME=demo"},
		Command: []string{
			build(t, "./tests/machines/vm/cmd/demo"), "-inside", log, "-nvml", library, "-accelscope", program(t), "--", "--rdma.datapath=always",
		},
	}
	go func() {
		_, err := vm.Run(ctx, options)
		ended <- err
	}()
	t.Cleanup(func() {
		_ = commands.Close()
		cancel()
		<-ended
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("%s\n%s", n.out.String(), text)
		}
	})
	for end := time.Now().Add(bootLimit); ; time.Sleep(time.Second) {
		text, err := scrape(n.url)
		if err == nil && len(series(text, "container_gpu_memory_used_bytes")) == 4 && sent(text) > 0 {
			return n
		}
		if len(ended) > 0 || time.Now().After(end) {
			t.Fatalf("the guest has no figures of its pods: %v", err)
		}
	}
}

// link sets the link of rxe0 down or up.
func (n *liveNode) link(t *testing.T, state string) {
	t.Helper()
	if _, err := fmt.Fprintln(n.stdin, state); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(timeLimit); !n.printed("the link is " + state); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the link is not %s", state)
		}
	}
}

// sent returns the bytes that the second pod, the writer, has sent.
func sent(metrics string) (bytes float64) {
	for labels, v := range series(metrics, "container_rdma_transmit_bytes_total") {
		if label(labels, "workload") == "default/train-1/worker" {
			bytes += v
		}
	}
	return bytes
}

// size returns the bytes in a text of format.Size.
func size(t *testing.T, text string) float64 {
	t.Helper()
	var n float64
	var unit string
	if _, err := fmt.Sscan(text, &n, &unit); err != nil {
		t.Fatalf("%q is no number of bytes: %v", text, err)
	}
	for i, name := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if unit == name {
			return n * float64(uint64(1)<<(10*i))
		}
	}
	t.Fatalf("%q is no number of bytes", text)
	return 0
}

// TestGuest compares a live node's page with its metrics, and sets a link down and up while the page is open: the
// verdict appears by the second refresh, and goes when the link is back.
func TestGuest(t *testing.T) {
	n := live(t)
	b := open(t, n.url, 1280, 900)
	b.visit(n.url + "/")
	b.until("rates", `document.querySelector("#live-usage").textContent.includes("rates of the")`)
	text, err := scrape(n.url)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for labels, v := range series(text, "container_gpu_memory_used_bytes") {
		if w := label(labels, "workload"); w != "" {
			want = append(want, w+" nvidia "+label(labels, "gpu_id")+" SIMULATED GPU "+format.Size(v))
		}
	}
	slices.Sort(want)
	if len(want) != 2 {
		t.Errorf("the metrics have %q", want)
	}
	// On a busy machine a refresh may lack the GPUs: the library has not answered in time.
	b.until("the same memory of GPUs as in the metrics: "+strings.Join(want, ", "), fmt.Sprintf(`[...document.querySelectorAll(
		"table.usage tbody:not(.unattributed) tr")].filter((r) => r.cells[1].textContent.startsWith("nvidia")).map((r) => [r.cells[0].querySelector("a").textContent,
		r.cells[1].querySelector("a").textContent, r.cells[1].querySelector("small").textContent, r.cells[2].firstChild.textContent.trim()].join(" ")).sort().join() === %q`,
		strings.Join(want, ",")))
	b.until("both pods on rxe0, one of which sends", `["default/train-0/worker rxe0", "default/train-1/worker rxe0"].every((want) => [...document.querySelectorAll(
		"table.usage tbody tr")].some((r) => r.cells[0].querySelector("a").textContent + " " + r.cells[1].textContent === want)) &&
		/B\/s.*uprobe/.test([...document.querySelectorAll("table.usage tbody tr")].find((r) => r.textContent.includes("train-1") && r.textContent.includes("rxe0")).cells[3].textContent)`)

	pairs := 0
	for labels, v := range series(text, "container_rdma_resources") {
		w, device := label(labels, "workload"), label(labels, "device")
		if !strings.HasPrefix(w, "default/train-") || label(labels, "type") != "qp" {
			continue
		}
		b.until(fmt.Sprintf("%v queue pairs of %s on %s", v, w, device), fmt.Sprintf(`[...document.querySelectorAll("table.usage tbody tr")].some((r) =>
			r.cells[0].querySelector("a")?.textContent === %q && r.cells[1].textContent === %q && r.cells[5].textContent.trim() === "%v")`, w, device, v))
		pairs++
	}
	if pairs < 2 {
		t.Errorf("the metrics have queue pairs of %d pods", pairs)
	}

	verdict(t, n, b)

	// The pod's sent bytes grow: the view's value is between the values before and after.
	before := sent(text)
	b.visit(n.url + "/workload?name=default%2Ftrain-1%2Fworker")
	shown := eval[string](b, `[...document.querySelectorAll(".figures tbody tr")].find((r) => r.cells[0].textContent === "container_rdma_transmit_bytes_total")?.cells[1].textContent ?? "none"`)
	if text, err = scrape(n.url); err != nil {
		t.Fatal(err)
	}
	if v := size(t, shown); v < size(t, format.Size(before)) || v > size(t, format.Size(sent(text))) {
		t.Errorf("the view shows %s sent bytes, the metrics had %s and have %s", shown, format.Size(before), format.Size(sent(text)))
	}
}

func verdict(t *testing.T, n *liveNode, b *tab) {
	t.Helper()
	const down = `document.querySelector("#verdicts").innerText.includes("RDMAPortDown")`
	if eval[bool](b, down) {
		t.Fatal("a port is down already")
	}
	n.link(t, "down")
	const refresh = `document.querySelector("#state time").dateTime`
	refreshes := map[string]bool{}
	first := eval[string](b, refresh)
	for end := time.Now().Add(timeLimit); ; time.Sleep(100 * time.Millisecond) {
		is, at, _ := strings.Cut(eval[string](b, `(`+down+`) + " " + `+refresh), " ")
		if is == "true" {
			break
		}
		if at != first {
			refreshes[at] = true
		}
		if len(refreshes) > 1 || time.Now().After(end) {
			t.Fatalf("no verdict after %d refreshes:\n%s", len(refreshes), eval[string](b, `document.querySelector("#verdicts").innerText`))
		}
	}
	t.Logf("the verdict is there after %d refreshes without it", len(refreshes))
	b.until("the port in the topology", `document.querySelector("#topology").textContent.includes("degraded: port 1 DOWN")`)
	n.link(t, "up")
	b.until("no verdict", `!`+down)
}
