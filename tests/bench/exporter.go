// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// An exporter is a program that the benchmark runs and scrapes.
type exporter struct {
	name string
	path string
	args func(m fixtures.Manifest, addr string) []string
	// environment is added to the benchmark's environment.
	environment []string
	identity    bool
}

// A process is a running exporter.
type process struct {
	exporter
	cmd    *exec.Cmd
	url    string
	client *http.Client
	output bytes.Buffer
	// started is the time from the start to the first answered scrape, which includes parsing BTF; startPeak is the HWM
	// then, in MB.
	started   time.Duration
	startPeak float64
}

// start runs e on a free loopback port and waits for its first answer.
func (e exporter) start(ctx context.Context, m fixtures.Manifest) (*process, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p := &process{
		exporter: e,
		cmd:      child.Command(ctx, e.path, e.args(m, addr)...),
		url:      "http://" + addr + "/metrics",
		client: &http.Client{
			Transport: &http.Transport{DisableCompression: true},
			Timeout:   10 * time.Second,
		},
	}
	p.cmd.Env = append(os.Environ(), e.environment...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for {
		_, err := p.scrape()
		if err == nil {
			p.started = time.Since(begin)
			var m memory
			if m, err = readStatus(p.pid()); err != nil {
				p.stop()
				return nil, err
			}
			p.startPeak = m.peak
			return p, nil
		}
		if time.Since(begin) > 20*time.Second || p.cmd.ProcessState != nil || ctx.Err() != nil {
			p.stop()
			return nil, fmt.Errorf("%s does not answer: %w\n%s", e.name, err, p.output.String())
		}
		time.Sleep(time.Millisecond)
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) stop() {
	p.client.CloseIdleConnections()
	p.cmd.Cancel()
	p.cmd.Wait()
}

// An answer is the response to one scrape.
type answer struct {
	latency time.Duration // until the last byte of the body
	body    []byte        // as on the wire
	gzipped bool
}

// Prometheus 3's Accept header without native histograms.
const accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5," +
	"application/openmetrics-text;version=0.0.1;q=0.4," +
	"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"

// scrape sends a request like Prometheus: on one kept connection, accepting gzip.
func (p *process) scrape() (answer, error) {
	req, err := http.NewRequest(http.MethodGet, p.url, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", "Prometheus/3.5.0")
	if !p.identity {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	begin := time.Now()
	resp, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{time.Since(begin), body, resp.Header.Get("Content-Encoding") == "gzip"}
	if resp.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("%s: %s", p.name, resp.Status)
	}
	return a, nil
}

// text returns the decompressed body.
func (a answer) text() ([]byte, error) {
	if !a.gzipped {
		return a.body, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// samples calls f with every series (name and labels) and its value.
func samples(text []byte, f func(series string, value float64)) {
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " # {") // an exemplar
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, '}') + 1 // a label's value may have spaces
		if end == 0 {
			end = strings.IndexByte(line, ' ')
		}
		if end <= 0 || end >= len(line) {
			continue
		}
		fields := strings.Fields(line[end:])
		if len(fields) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			f(line[:end], v)
		}
	}
}

// shows reports whether an answer has the value of a counter of device.
func (p *process) shows(device string, value uint64) (bool, error) {
	a, err := p.scrape()
	if err != nil {
		return false, err
	}
	text, err := a.text()
	if err != nil {
		return false, err
	}
	found := false
	samples(text, func(series string, v float64) {
		found = found || v == float64(value) && strings.Contains(series, `"`+device+`"`)
	})
	return found, nil
}
