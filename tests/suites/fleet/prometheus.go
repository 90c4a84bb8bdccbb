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
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// service is a running program with Prometheus's API.
type service struct {
	api
	cmd *exec.Cmd
	log *os.File
}

// startService starts a program, and waits until it is ready.
func startService(ctx context.Context, log, listen, program string, args ...string) (service, error) {
	file, err := os.Create(log)
	if err != nil {
		return service{}, err
	}
	cmd := child.Command(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		return service{}, errors.Join(err, file.Close())
	}
	s := service{api{"http://" + listen}, cmd, file}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := s.call(ctx, http.MethodGet, "/-/ready", nil, nil)
		if err == nil {
			return s, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			text, _ := os.ReadFile(log)
			s.stop()
			return service{}, fmt.Errorf("%w: %s: %s", err, program, text)
		}
	}
}

func (s service) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // killed
	_ = s.log.Close()
}

// prometheus is a running Debian Prometheus. It scrapes nothing.
type prometheus struct {
	service
	config string // file
}

func startPrometheus(ctx context.Context, listen, config, data string) (prometheus, error) {
	s, err := startService(ctx, config+".log", listen, "prometheus", "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+listen, "--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=1d")
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: install the Debian package prometheus (make deps)", err)
	}
	return prometheus{s, config}, err
}

func openPrometheus(ctx context.Context, f *fleet) (store, error) {
	config := filepath.Join(f.dir, "prometheus.yml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		return nil, err
	}
	return startPrometheus(ctx, f.listen, config, f.data)
}

func (p prometheus) send(ctx context.Context, _ int, body []byte) error { return p.write(ctx, body) }

func (prometheus) settle(context.Context) error { return nil }

func (p prometheus) load(_ context.Context, rules string) error {
	if err := os.WriteFile(p.config, []byte("rule_files: ['"+rules+"']\n"), 0o600); err != nil {
		return err
	}
	return p.cmd.Process.Signal(syscall.SIGHUP)
}

// api is Prometheus's API.
type api struct{ url string }

func (p api) call(ctx context.Context, method, path string, header http.Header, body []byte, into ...*[]byte) error {
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

func (p api) write(ctx context.Context, body []byte) error {
	return p.call(ctx, http.MethodPost, "/api/v1/write", http.Header{
		"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}, s2.EncodeSnappy(nil, body))
}

// awaitRules waits until rules are loaded.
func (p api) awaitRules(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if groups, err := p.groups(ctx); err != nil || len(groups) > 0 {
			return err
		}
	}
	return errors.New("there are no rules after a minute")
}

func (p api) get(ctx context.Context, path string, values url.Values, data any) error {
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
func (p api) query(ctx context.Context, expr string, at time.Time) (a dashboards.Answer, err error) {
	return a, p.get(ctx, "query", url.Values{"query": {expr}, "time": {epoch(at)}}, &a)
}

func (p api) queryRange(ctx context.Context, expr string, begin, end time.Time, every time.Duration) (a dashboards.Answer, err error) {
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

func (p api) groups(ctx context.Context) ([]group, error) {
	var data struct{ Groups []group }
	err := p.get(ctx, "rules", nil, &data)
	return data.Groups, err
}
