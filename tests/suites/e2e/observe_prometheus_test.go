// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// scrapeEvery is the interval at which Prometheus scrapes and evaluates rules here. rateInterval is the range of rates
// that Grafana derives from it: four scrape intervals plus one.
const (
	scrapeEvery  = 5 * time.Second
	rateInterval = "25s"
)

type prometheus struct {
	t   *testing.T
	url string
}

// startPrometheus starts a Prometheus that scrapes these targets, by instance, with the rules in a directory.
func startPrometheus(t *testing.T, port int, rules string, targets map[string]string, args ...string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: %v, scrape_timeout: %[1]v, evaluation_interval: %[1]v}\n"+
		"rule_files: ['%s/*.yaml']\nscrape_configs:\n- job_name: accelscope\n  honor_labels: true\n  "+
		"static_configs:\n", scrapeEvery, rules)
	for instance, address := range targets {
		config += fmt.Sprintf("  - {targets: ['%s'], labels: {instance: '%s'}}\n", address, instance)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", port)
	log := &lockedBuffer{}
	cmd := child.Command(context.Background(), "prometheus", append([]string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address,
	}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install the Debian package prometheus", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", log)
		}
	})
	p := &prometheus{t, "http://" + address}
	eventually(t, 60*time.Second, func() error {
		res, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("/-/ready: %s", res.Status)
		}
		return nil
	})
	return p
}

func (p *prometheus) get(path string, values url.Values, data any) error {
	res, err := http.Get(p.url + "/api/v1/" + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	envelope := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(res.Body).Decode(&envelope); err != nil {
		return fmt.Errorf("%s: %s: %w", path, res.Status, err)
	}
	if envelope.Status != "success" {
		return fmt.Errorf("%s: %s", path, envelope.Error)
	}
	return nil
}

func epoch(at time.Time) string { return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64) }

// ask runs the query of a panel: an instant query or a range query.
func (p *prometheus) ask(expr string, instant bool, begin, end time.Time) (dashboards.Answer, error) {
	var a dashboards.Answer
	if instant {
		return a, p.get("query", url.Values{"query": {expr}, "time": {epoch(end)}}, &a)
	}
	return a, p.get("query_range", url.Values{
		"query": {expr}, "start": {epoch(begin)}, "end": {epoch(end)}, "step": {fmt.Sprint(scrapeEvery.Seconds())},
	}, &a)
}

// complete waits until all targets were scraped and traffic was observed, and returns a time at which both hold. A
// scrape in an emulator may time out, which makes its target's series stale from its beginning on, and Prometheus may
// record that late, so only samples much older than the longest scrape are certain. A single scrape shows no traffic,
// and between two rounds there is no traffic.
func (p *prometheus) complete(targets int) time.Time {
	p.t.Helper()
	var at time.Time
	earliest := time.Now().Add(-scrapeEvery)
	eventually(p.t, 5*time.Minute, func() error {
		if at = time.Now().Add(-3 * scrapeEvery); at.Before(earliest) {
			return errors.New("samples are too recent")
		}
		for expr, least := range map[string]float64{
			"sum(up)":                      float64(targets),
			"count(accelscope_build_info)": float64(targets),
			"sum(rate(container_rdma_transmit_bytes_total{workload!=''}[" + rateInterval + "]))": 1,
		} {
			answer, err := p.ask(expr, true, at, at)
			if err != nil {
				return err
			}
			if len(answer.Series) != 1 || answer.Series[0].Value.Value < least {
				return fmt.Errorf("%s: %v, want %v", expr, answer.Series, least)
			}
		}
		return nil
	})
	return at
}

type rule struct {
	Name, Type, Health, LastError string
}

func (p *prometheus) rules() []rule {
	p.t.Helper()
	var data struct{ Groups []struct{ Rules []rule } }
	if err := p.get("rules", nil, &data); err != nil {
		p.t.Fatal(err)
	}
	var all []rule
	for _, g := range data.Groups {
		all = append(all, g.Rules...)
	}
	return all
}
