// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// start runs the sensor on a free port and returns its URL. stop ends it with SIGTERM and returns its error and how
// long the end took.
func start(t *testing.T, binary string, args ...string) (url string, stop func() (time.Duration, error)) {
	t.Helper()
	url, _, stop = startProcess(t, binary, args...)
	return url, stop
}

// startProcess is start that also returns the process.
func startProcess(t *testing.T, binary string, args ...string) (url string, p *os.Process, stop func() (time.Duration, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	cmd := child.Command(ctx, binary, append(args, "--web.listen-address=127.0.0.1:0", "--log.format=json")...)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address := child.Addresses(log)
	stop = func() (time.Duration, error) {
		began := time.Now()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill(); _ = log.Close() })
		defer kill.Stop()
		for range address { // until the log ends: Wait closes the pipe
		}
		err := cmd.Wait()
		return time.Since(began), err
	}
	a, ok := <-address
	if !ok {
		t.Fatalf("the sensor ended: %v", cmd.Wait())
	}
	return "http://" + a, cmd.Process, stop
}

// fakeNode is a tree of files that replaces a machine with ten HCAs: this test is for the program, not for the sources.
// Sources without files in this tree have their own tests.
func fakeNode(t *testing.T) (fixtures.Manifest, []string) {
	t.Helper()
	m, err := fixtures.Write(t.TempDir(), fixtures.Node())
	if err != nil {
		t.Fatal(err)
	}
	return m, []string{
		"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(),
		"--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node",
		"--no-collector.container", "--no-collector.gpu", "--no-collector.access", "--no-collector.kernellog", "--no-collector.link",
	}
}

// ready waits for the first refresh.
func ready(t *testing.T, url string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if code, _, body := get(t, url+"/readyz", ""); code == http.StatusOK {
			return body
		}
	}
	t.Fatal("not ready in a minute")
	return ""
}

func TestBinaryOnFakeNode(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := build(t)

	t.Run("serve and end", func(t *testing.T) {
		m, args := fakeNode(t)
		url, stop := start(t, binary, args...)
		if body := ready(t, url); body != "ready\n" {
			t.Errorf("/readyz: %q, want all well", body)
		}
		_, _, body := get(t, url+"/metrics", "text/plain")
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		// Compares the manifest of the fixture with the served metrics.
		want := map[string]float64{}
		for _, hca := range m.HCAs {
			want[hca.Name] = 4 * float64(hca.Counters["port_rcv_data"])
		}
		got := map[string]float64{}
		for _, metric := range families["infiniband_port_receive_data_bytes_total"].GetMetric() {
			for _, l := range metric.GetLabel() {
				if l.GetName() == "device" {
					got[l.GetValue()] = metric.GetCounter().GetValue()
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("received bytes %v, want %v", got, want)
		}
		if took, err := stop(); err != nil || took > 5*time.Second {
			t.Errorf("SIGTERM: %v after %v, want exit status 0 within 5 s", err, took)
		}
	})

	t.Run("strict", func(t *testing.T) {
		m, args := fakeNode(t)
		if err := os.RemoveAll(m.SysFS()); err != nil {
			t.Fatal(err)
		}
		out, err := child.Command(t.Context(), binary, append(args, "--strict", "--web.listen-address=127.0.0.1:0")...).
			CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--strict: rdma") {
			t.Errorf("without /sys: %v, want an error about rdma:\n%s", err, out)
		}
	})

	t.Run("top", func(t *testing.T) {
		_, args := fakeNode(t)
		url, stop := start(t, binary, append(args, "--no-web.pages")...)
		ready(t, url)
		out, err := child.Command(t.Context(), binary, "top", "--once", "--interval=100ms", "--json", "--url="+url+"/metrics").Output()
		var answer struct {
			Rates   float64 `json:"rates_seconds"`
			Devices []struct{ TX *float64 }
		}
		err = errors.Join(err, json.Unmarshal(out, &answer))
		if err != nil || answer.Rates < 5 || len(answer.Devices) == 0 || answer.Devices[0].TX == nil {
			t.Errorf("top: %v, printed %q, want rates of 5 s or more", err, out)
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	})

	t.Run("Intel GPU", func(t *testing.T) { testIntelGPU(t, binary) })

	t.Run("GPU memory", func(t *testing.T) { testGPUMemory(t, binary) })
	t.Run("collectives", func(t *testing.T) { testCollectives(t, binary) })

	t.Run("PCIe links", func(t *testing.T) { testPCIe(t, binary) })

	t.Run("verdicts", func(t *testing.T) { testVerdicts(t, binary) })

	t.Run("version", func(t *testing.T) {
		out, err := child.Command(t.Context(), binary, "version").Output()
		if err != nil || !strings.HasPrefix(string(out), "accelscope ") {
			t.Errorf("version: %v, printed %q", err, out)
		}
	})

	t.Run("the address is taken", func(t *testing.T) {
		_, args := fakeNode(t)
		url, stop := start(t, binary, args...)
		cmd := child.Command(t.Context(), binary, append(args, "--web.listen-address="+strings.TrimPrefix(url, "http://"))...)
		var stderr strings.Builder
		cmd.Stderr, cmd.Stdout = &stderr, io.Discard
		if err := cmd.Run(); err == nil || !strings.Contains(stderr.String(), "address already in use") {
			t.Errorf("second sensor: %v, want an error that says why:\n%s", err, &stderr)
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// get requests a URL, and returns the status, the headers and the body.
func get(t *testing.T, url, accept string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}
