// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// sensor starts the program on a FAKE node: a tree of files with three HCAs, and NVIDIA's library with eight GPUs with
// processes in ten containers.
func sensor(t *testing.T) (url string) {
	t.Helper()
	binary := program(t)
	library, err := nvml.Build(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{
		ComputeHCAs: 3, Containers: 10, ContainersPerPod: 2, ProcsPerContainer: 4, Services: 3, Seed: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, c := range m.Containers {
		pids = append(pids, c.PIDs...)
	}
	s.Node(pids...)
	for i := range nvml.GPUs {
		if err := nvml.Bind(m.SysFS(), m.ProcFS(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Capabilities(m.ProcFS()); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	args := append(s.Environment(), binary, "--gpu.control-socket="+filepath.Join(m.Dir, "control", "socket"), "--path.sysfs="+m.SysFS(),
		"--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS(), "--path.host="+m.Dir, "--no-collector.probe", "--no-collector.runtime",
		"--no-collector.kubelet", "--no-collector.node", "--no-collector.container", "--no-collector.access", "--no-collector.link",
		"--no-collector.kernellog", "--node.name=simulated-node", "--gpu.nvml-library="+library, "--gpu.process-interval=1s",
		"--web.listen-address=127.0.0.1:0", "--log.format=json", "--state.dir=")
	program := child.Command(context.Background(), "env", args...) // ends by a signal
	log, err := program.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		_ = program.Wait()
	})
	a, ok := <-child.Addresses(log)
	if !ok {
		t.Fatal("the sensor ended")
	}
	return "http://" + a
}

// program returns the path of the sensor's binary, which make test-pages has built.
func program(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("ACCELSCOPE_BINARY"); binary != "" {
		return binary
	}
	return build(t, "./cmd/accelscope")
}

// build builds a program of the main module.
func build(t *testing.T, pkg string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := child.Command(t.Context(), "go", "build", "-o", binary, pkg)
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// metrics returns the series of a family and their values.
func metrics(t *testing.T, url, family string) map[string]float64 {
	t.Helper()
	text, err := scrape(url)
	if err != nil {
		t.Fatal(err)
	}
	return series(text, family)
}

// scrape returns the metrics of a sensor.
func scrape(url string) (string, error) {
	client := http.Client{Timeout: 20 * time.Second}
	answer, err := client.Get(url + "/metrics") //nolint:noctx // of a server on this machine
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// series returns the series of a family in the text format, by labels. A value that is not a number is NaN.
func series(text, family string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^`+family+`\{(.*)\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			v = math.NaN()
		}
		out[m[1]] = v
	}
	return out
}

// TestSensor compares the real program's table with its metrics: each workload's memory on each GPU.
func TestSensor(t *testing.T) {
	t.Parallel()
	url := sensor(t)
	b := open(t, url, 1280, 900)
	// The first list of processes is in the background.
	for end := time.Now().Add(timeLimit); len(metrics(t, url, "container_gpu_memory_used_bytes")) < 20; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no shares of GPUs")
		}
	}
	names := map[string]string{} // by UUID
	for labels := range metrics(t, url, "gpu_info") {
		names[label(labels, "uuid")] = label(labels, "vendor") + " " + label(labels, "gpu_id")
	}
	var want []string
	for labels, v := range metrics(t, url, "container_gpu_memory_used_bytes") {
		workload := label(labels, "workload")
		if workload == "" {
			workload = "(no owner)"
		}
		want = append(want, workload+" "+names[label(labels, "uuid")]+" "+format.Size(v))
	}
	slices.Sort(want)
	b.visit(url + "/?all=1")
	got := eval[[]string](b, `[...document.querySelectorAll("table.usage tbody tr")].filter((r) => r.cells[1].textContent.startsWith("nvidia")).map(
		(r) => [r.cells[0].querySelector("a").textContent, r.cells[1].querySelector("a").textContent, r.cells[2].firstChild.textContent.trim()].join(" ")).filter(
		(r) => !r.endsWith(" -"))`)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the page shows\n%s\nand the metrics have\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The bytes of a port, in the HCA's view.
	b.visit(url + "/device?name=mlx5_0")
	for labels, v := range metrics(t, url, "infiniband_port_receive_data_bytes_total") {
		shown := eval[string](b, `[...document.querySelectorAll(".figures tbody tr")].find((r) => r.cells[0].textContent === "infiniband_port_receive_data_bytes_total")?.cells[1].textContent ?? "none"`)
		if label(labels, "device") == "mlx5_0" && shown != format.Size(v) {
			t.Errorf("the page shows %s received bytes, the metrics have %v", shown, v)
		}
	}
	b.visit(url + "/")
	b.until("rates", `document.querySelector("#live-usage").textContent.includes("rates of the")`)
	b.until("sparklines", `document.querySelectorAll(".sparks path").length > 8`)
	b.do(chromedp.Click(chromedp.CSS(`.map a`)))
	b.until("the view of a device", `location.pathname === "/device"`)
}

// label returns the value of a label, which has no quotes.
func label(labels, name string) string {
	m := regexp.MustCompile(`(?:^|,)` + name + `="([^"]*)"`).FindStringSubmatch(labels)
	if m == nil {
		return ""
	}
	return m[1]
}
