// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// prometheus is a running Debian Prometheus.
type prometheus struct {
	cmd *exec.Cmd
	url string
	log *os.File
}

func startPrometheus(ctx context.Context, listen, config, data string) (prometheus, error) {
	log, err := os.Create(config + ".log")
	if err != nil {
		return prometheus{}, err
	}
	cmd := child.Command(ctx, "prometheus", "--config.file="+config, "--storage.tsdb.path="+data, "--web.listen-address="+listen,
		"--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=1d")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return prometheus{}, errors.Join(fmt.Errorf("%w: install the Debian package prometheus (make deps)", err), log.Close())
	}
	p := prometheus{cmd, "http://" + listen, log}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := p.call(ctx, http.MethodGet, "/-/ready", nil, nil)
		if err == nil {
			return p, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			p.stop()
			return prometheus{}, fmt.Errorf("%w: Prometheus: %s", err, text)
		}
	}
}

func (p prometheus) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // killed
	_ = p.log.Close()
}

func (p prometheus) call(ctx context.Context, method, path string, header http.Header, body []byte, into ...*[]byte) error {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	for _, i := range into {
		*i = text
	}
	if err == nil && res.StatusCode >= 300 {
		return fmt.Errorf("%s: %s: %.500s", path, res.Status, text)
	}
	return err
}

func (p prometheus) send(ctx context.Context, body []byte) error {
	return p.call(ctx, http.MethodPost, "/api/v1/write", http.Header{
		"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}, s2.EncodeSnappy(nil, body))
}

// reload reloads Prometheus's configuration, and waits until it is loaded.
func (p prometheus) reload(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if groups, err := p.groups(ctx); err != nil || len(groups) > 0 {
			return err
		}
	}
	return errors.New("prometheus has no rules after a reload")
}

func (p prometheus) get(ctx context.Context, path string, values url.Values, data any) error {
	envelope := struct {
		Status, Error string
		Data          any
	}{Data: data}
	var text []byte
	if err := p.call(ctx, http.MethodGet, "/api/v1/"+path+"?"+values.Encode(), nil, nil, &text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &envelope); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func epoch(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

// query evaluates an expression at a time.
func (p prometheus) query(ctx context.Context, expr string, at time.Time) (a dashboards.Answer, err error) {
	return a, p.get(ctx, "query", url.Values{"query": {expr}, "time": {epoch(at)}}, &a)
}

func (p prometheus) queryRange(ctx context.Context, expr string, begin, end time.Time, every time.Duration) (a dashboards.Answer, err error) {
	return a, p.get(ctx, "query_range", url.Values{
		"query": {expr}, "start": {epoch(begin)}, "end": {epoch(end)}, "step": {strconv.Itoa(int(every.Seconds()))},
	}, &a)
}

// group is a group of rules as Prometheus evaluates it.
type group struct {
	Name, File     string
	Interval       float64
	EvaluationTime float64
	LastEvaluation time.Time
	Rules          []rule
}

type rule struct {
	Name, Type, Query, Health, LastError string
	EvaluationTime                       float64
	Alerts                               []alert
}

type alert struct {
	State  string
	Labels map[string]string
}

func (p prometheus) groups(ctx context.Context) ([]group, error) {
	var data struct{ Groups []group }
	err := p.get(ctx, "rules", nil, &data)
	return data.Groups, err
}
