// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// linkStory is what an operator sees when a link fails under a workload: pause storms and blocks that error correction cannot correct are
// injected into the port of a container; the sensor exports them; a real Prometheus with the shipped rules raises the alerts; and
// the runbooks that they name, followed as they are printed, name the container. The port belongs to the test's driver.
func (n node) linkStory(t *testing.T) {
	l := loadLinktest(t, "driver=mlx5_core")
	sh(t, "ip", "address", "add", "10.72.0.1/24", "dev", l.name)
	sh(t, "rdma", "link", "add", "rxe8", "type", "rxe", "netdev", l.name)
	l.set("dcb/pfc_enabled", 1<<3)
	storms := func(count int) {
		l.set("statistics", fmt.Sprintf("tx_pause_storm_error_events %d\n", count))
		l.set("pause/storm_events", count) // which replaces the statistic of mlx5 since Linux 7
	}
	storms(0)
	l.set("fec/uncorrectable_blocks/total", 0)
	suffers := enter(t, "suffers", "verbs", "-d", "rxe8", "-q", "2")
	suffers.line(t, "device ")
	spared := enter(t, "spared", "verbs", "-d", "rxe0", "-q", "1")
	spared.line(t, "device ")

	const name = "node-0"
	s := start(t, n.args("--web.listen-address=127.0.0.1:9847", "--node.name="+name, "--no-collector.node", "--no-collector.kubelet",
		"--no-collector.runtime", "--no-collector.gpu", "--no-collector.kernellog")...)
	p := startPrometheus(t, 9093, shortened(t, "RDMAUncorrectableBlocks"), map[string]string{name: strings.TrimPrefix(s.url, "http://")})
	p.has(t, `rdma_port_pause_storm_events_total{device="rxe8"} == 0`, `rdma_port_fec_uncorrectable_blocks_total{device="rxe8"} == 0`)
	if got := p.firing(t); len(got) > 0 {
		t.Errorf("before the faults fire %v", got)
	}

	storms(2)
	l.set("fec/uncorrectable_blocks/total", 40)
	raised := map[string]string{} // runbooks by alert
	eventually(t, 5*time.Minute, func() error {
		for _, a := range p.firing(t) {
			if a.Labels["device"] == "rxe8" && a.Labels["port"] == "1" && a.Labels["instance"] == name {
				raised[a.Labels["alertname"]] = a.Annotations["runbook_url"]
			}
		}
		for _, want := range []string{"RDMAPauseStorm", "RDMAUncorrectableBlocks"} {
			if raised[want] == "" {
				return fmt.Errorf("%s does not fire; firing: %v", want, raised)
			}
		}
		return nil
	})
	for _, a := range p.firing(t) {
		if a.Labels["device"] == "rxe0" {
			t.Errorf("%s fires for a port without a fault", a.Labels["alertname"])
		}
	}
	for alert, address := range raised {
		t.Run(alert, func(t *testing.T) { n.follow(t, p, filepath.Base(address), name, suffers, spared) })
	}
	suffers.rest(t)
	spared.rest(t)
	s.stop()
	sh(t, "rdma", "link", "delete", "rxe8")
}

var (
	queries  = regexp.MustCompile("(?s)```promql\n(.*?)```")
	commands = regexp.MustCompile("(?s)```sh\n(.*?)```")
)

// follow does what a runbook prints: its queries and the commands of the sensor.
func (n node) follow(t *testing.T, p *prometheus, runbook, instance string, suffers, spared *container) {
	text, err := os.ReadFile(filepath.Join("../../../deploy/prometheus/runbooks", runbook))
	if err != nil {
		t.Fatal(err)
	}
	printed := func(r *regexp.Regexp) string {
		m := r.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no %v", runbook, r)
		}
		return string(m[1])
	}
	// The query for the workloads names the workload on the port, with the port.
	devices := map[string]string{} // by container
	for query := range strings.SplitSeq(strings.ReplaceAll(printed(queries), "NODE", instance), "\n\n") {
		now := time.Now()
		answer, err := p.ask(query, true, now, now)
		if err != nil {
			t.Errorf("%s: %v", query, err)
		}
		for _, series := range answer.Series {
			if id := series.Labels["container_id"]; id != "" {
				devices[id] = series.Labels["device"]
			}
		}
	}
	if devices[suffers.id] != "rxe8" || devices[spared.id] != "rxe0" {
		t.Errorf("the queries show %v", devices)
	}
	// So do the commands: the lines with the device of the alert have this container and no other.
	t.Setenv("PATH", filepath.Dir(os.Getenv(binaryVar))+":"+os.Getenv("PATH"))
	var lines []string
	for command := range strings.Lines(printed(commands)) {
		if !strings.HasPrefix(command, "accelscope top ") {
			continue
		}
		out := sh(t, "sh", "-c", command)
		t.Logf("%s%s", command, out)
		lines = slices.AppendSeq(lines, strings.Lines(out))
	}
	shows := func(c *container, device string) bool {
		return slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, c.id[:12]) && strings.Contains(line, device) })
	}
	if !shows(suffers, "rxe8") || shows(spared, "rxe8") || !shows(spared, "rxe0") {
		t.Errorf("the commands show %q", lines)
	}
}

// shortened returns a directory with the shipped rules, evaluated at the scrape interval of the tests. Only this alert
// is changed: it fires after at most two intervals.
func shortened(t *testing.T, alert string) string {
	t.Helper()
	dir := hasten(t, "../../../deploy/prometheus/rules")
	file := filepath.Join(dir, "alerts.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`(?s)(- alert: ` + alert + `\n.*?\n\s+for: )\S+`)
	if !rule.Match(text) {
		t.Fatalf("no duration in the rule %s", alert)
	}
	text = rule.ReplaceAll(text, []byte("${1}"+(2*scrapeEvery).String()))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (p *prometheus) has(t *testing.T, queries ...string) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		for _, q := range queries {
			now := time.Now()
			answer, err := p.ask(q, true, now, now)
			if err != nil {
				return err
			}
			if !answer.HasData() {
				return fmt.Errorf("%s: no data", q)
			}
		}
		return nil
	})
}

// firedAlert is an alert in the API of Prometheus.
type firedAlert struct {
	Labels, Annotations map[string]string
	State               string
}

func (p *prometheus) firing(t *testing.T) []firedAlert {
	t.Helper()
	var data struct{ Alerts []firedAlert }
	if err := p.get("alerts", url.Values{}, &data); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(data.Alerts, func(a firedAlert) bool { return a.State != "firing" })
}
