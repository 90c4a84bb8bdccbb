// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
)

// smi is amd-smi, AMD's tool, as a source of last resort: in the background, with a
// deadline, and what it prints fills in only what the kernel has not told (a guest
// has no sensors, a board without FRU no name). It asks every GPU, so it is not
// started while one of them is asleep or could go there.
type smi struct {
	path     string
	runner   child.Runner
	log      *zap.Logger
	interval time.Duration
	deadline time.Duration

	mu   sync.Mutex
	gpus map[string]model.GPU // by PCI address
	at   time.Time
	// metered are the GPUs of which the kernel has told the energy: what amd-smi read
	// half a minute ago would make that fall when the kernel does not tell for once.
	metered map[string]bool
}

func newSMI(path string, log *zap.Logger) *smi {
	return &smi{
		path: path, log: log, interval: 30 * time.Second, deadline: 20 * time.Second, metered: map[string]bool{},
		runner: child.Runner{MaxStuck: 1},
	}
}

const (
	maxOutput  = 4 << 20 // of amd-smi
	maxSMI     = 1024    // GPUs in it
	smiOld     = 3       // intervals after which what it told is too old
	smiTrouble = "amd-smi is of no help: leave out --gpu.amd-smi, or look at what it prints"
	hottest    = 200 // degrees: what is hotter is no temperature
)

// run asks amd-smi until ctx ends.
func (s *smi) run(ctx context.Context, awake func() bool) {
	var told string
	for {
		pause := time.Second // until somebody is awake
		if awake() {
			pause = s.interval
			gpus, err := s.ask(ctx)
			if err == nil {
				s.mu.Lock()
				s.gpus, s.at = gpus, time.Now()
				s.mu.Unlock()
				told = ""
			} else if ctx.Err() == nil && err.Error() != told {
				told = err.Error()
				s.log.Warn(smiTrouble, zap.Error(err))
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// ask starts it twice: for what does not change, and for what does.
func (s *smi) ask(ctx context.Context) (map[string]model.GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	static, err := s.output(ctx, "static", "--json")
	if err != nil {
		return nil, err
	}
	metric, err := s.output(ctx, "metric", "--json")
	if err != nil {
		return nil, err
	}
	return parseSMI(static, metric)
}

func (s *smi) output(ctx context.Context, args ...string) ([]byte, error) {
	out, _, err := s.runner.Run(ctx, child.Program{Path: s.path, Args: args, MaxStdout: maxOutput})
	if err != nil {
		return nil, fmt.Errorf("amd-smi %s: %w", args[0], err)
	}
	return out, nil
}

// smiStatic and smiMetric are the parts of its JSON that are used: a list with an
// element per GPU, since ROCm 7 below gpu_data.
type smiStatic struct {
	GPU int `json:"gpu"`
	Bus struct {
		BDF string `json:"bdf"`
	} `json:"bus"`
	ASIC struct {
		Name string `json:"market_name"`
	} `json:"asic"`
	Board struct {
		Serial string `json:"product_serial"`
	} `json:"board"`
	Limit struct {
		Power quantity `json:"max_power"`
	} `json:"limit"`
}

type smiMetric struct {
	GPU   int `json:"gpu"`
	Usage struct {
		GFX quantity `json:"gfx_activity"`
	} `json:"usage"`
	Power struct {
		Socket quantity `json:"socket_power"`
	} `json:"power"`
	Temperature struct {
		Edge    quantity `json:"edge"`
		Hotspot quantity `json:"hotspot"`
		Memory  quantity `json:"mem"`
	} `json:"temperature"`
	Energy struct {
		Total quantity `json:"total_energy_consumption"`
	} `json:"energy"`
}

// quantity is a number with its unit, a bare number, or a string that says that
// there is none.
type quantity struct{ model.Optional }

// UnmarshalJSON takes {"value": 131, "unit": "W"}, 131 and "N/A".
func (q *quantity) UnmarshalJSON(b []byte) error {
	with := struct {
		Value json.RawMessage `json:"value"`
	}{b}
	if bytes.HasPrefix(b, []byte("{")) {
		with.Value = nil
		if err := json.Unmarshal(b, &with); err != nil {
			return err
		}
	}
	var v float64
	if bytes.Equal(with.Value, []byte("null")) || json.Unmarshal(with.Value, &v) != nil || v < 0 {
		return nil
	}
	q.Optional = model.Some(v)
	return nil
}

// parseSMI joins the two outputs by the number of the GPU.
func parseSMI(static, metric []byte) (map[string]model.GPU, error) {
	var statics []smiStatic
	var metrics []smiMetric
	if err := errors.Join(unwrap(static, &statics), unwrap(metric, &metrics)); err != nil {
		return nil, fmt.Errorf("reading what amd-smi prints: %w", err)
	}
	gpus := map[string]model.GPU{}
	for _, st := range statics[:min(len(statics), maxSMI)] {
		g := model.GPU{
			Name: told(parseLine([]byte(st.ASIC.Name))), Serial: told(parseLine([]byte(st.Board.Serial))),
			PowerLimit: st.Limit.Power.Optional,
		}
		for _, m := range metrics[:min(len(metrics), maxSMI)] {
			if m.GPU != st.GPU {
				continue
			}
			g.Utilization, g.Power, g.Energy = percent(m.Usage.GFX.Optional), m.Power.Socket.Optional, m.Energy.Total.Optional
			for _, t := range []struct {
				name string
				quantity
			}{{"edge", m.Temperature.Edge}, {"junction", m.Temperature.Hotspot}, {"memory", m.Temperature.Memory}} {
				if t.Value < hottest {
					g.Temperatures = put(g.Temperatures, t.name, t.Optional)
				}
			}
		}
		address := strings.ToLower(st.Bus.BDF)
		if !isPCI(address) {
			continue
		}
		if _, partition := gpus[address]; !partition { // the first stands for the card
			gpus[address] = g
		}
	}
	return gpus, nil
}

func unwrap[T any](b []byte, list *[]T) error {
	var wrapped struct {
		Data []T `json:"gpu_data"`
	}
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		err := json.Unmarshal(b, &wrapped)
		*list = wrapped.Data
		return err
	}
	return json.Unmarshal(b, list)
}

// merge fills in what is not known.
func (s *smi) merge(g *model.GPU) {
	s.mu.Lock()
	other, ok := s.gpus[g.PCIAddress]
	old := time.Since(s.at) > smiOld*s.interval
	if g.Energy.Known {
		s.metered[g.PCIAddress] = true
	}
	if s.metered[g.PCIAddress] {
		other.Energy = model.Optional{}
	}
	s.mu.Unlock()
	if !ok || old {
		return
	}
	if g.Name == "" {
		g.Name = other.Name
	}
	if g.Serial == "" {
		g.Serial = other.Serial
	}
	for _, v := range []struct{ is, would *model.Optional }{
		{&g.Utilization, &other.Utilization},
		{&g.Power, &other.Power},
		{&g.PowerLimit, &other.PowerLimit},
		{&g.Energy, &other.Energy},
	} {
		if !v.is.Known {
			*v.is = *v.would
		}
	}
	if g.Temperatures == nil {
		g.Temperatures = other.Temperatures
	}
}
