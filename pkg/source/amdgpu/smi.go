// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// smi is AMD's tool amd-smi, a source of last resort. It runs in the background with a
// deadline, and fills in only values that the kernel does not report (a guest has no sensors,
// a board without FRU no name). It reads every GPU, so it is not started while one of them is
// asleep or could fall asleep.
type smi struct {
	path     string
	runner   child.Runner
	log      *zap.Logger
	interval time.Duration
	deadline time.Duration

	mu   sync.Mutex
	gpus map[string]model.GPU // by PCI address
	at   time.Time
	// kernelEnergy has the GPUs with an energy counter of the kernel: an older value of
	// amd-smi would make the counter fall if the kernel's is missing once.
	kernelEnergy map[string]bool
}

func newSMI(path string, log *zap.Logger) *smi {
	return &smi{
		path: path, log: log, interval: 30 * time.Second, deadline: 20 * time.Second, kernelEnergy: map[string]bool{},
		runner: child.Runner{MaxStuck: 1},
	}
}

const (
	maxOutput  = 4 << 20 // of amd-smi's output
	maxSMI     = 1024    // GPUs in the output
	smiOld     = 3       // intervals after which its values are too old
	smiTrouble = "running amd-smi"
)

// run runs amd-smi periodically until ctx ends.
func (s *smi) run(ctx context.Context, awake func() bool) {
	var logged string
	for {
		pause := time.Second // until all GPUs are awake
		if awake() {
			pause = s.interval
			gpus, err := s.ask(ctx)
			if err == nil {
				s.mu.Lock()
				s.gpus, s.at = gpus, time.Now()
				s.mu.Unlock()
				logged = ""
			} else if ctx.Err() == nil && err.Error() != logged {
				logged = err.Error()
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

// ask runs amd-smi twice: for constant and for changing values.
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

// smiStatic and smiMetric are the used parts of its JSON: a list with an element per GPU,
// since ROCm 7 below gpu_data.
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

// quantity is a number with its unit, a bare number, or a string for an unavailable value.
type quantity struct{ model.Optional }

// UnmarshalJSON accepts {"value": 131, "unit": "W"}, 131 and "N/A".
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

// parseSMI joins the two outputs by GPU number.
func parseSMI(static, metric []byte) (map[string]model.GPU, error) {
	var statics []smiStatic
	var metrics []smiMetric
	if err := errors.Join(unwrap(static, &statics), unwrap(metric, &metrics)); err != nil {
		return nil, fmt.Errorf("parsing the output of amd-smi: %w", err)
	}
	gpus := map[string]model.GPU{}
	for _, st := range statics[:min(len(statics), maxSMI)] {
		g := model.GPU{
			Name: clean(drm.Text([]byte(st.ASIC.Name))), Serial: clean(drm.Text([]byte(st.Board.Serial))),
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
				g.Temperatures = drm.Put(g.Temperatures, t.name, t.Optional)
			}
		}
		address := strings.ToLower(st.Bus.BDF)
		if !model.IsPCIAddress(address) {
			continue
		}
		if _, partition := gpus[address]; !partition { // the first one stands for the card
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

// merge fills in unknown values.
func (s *smi) merge(g *model.GPU) {
	s.mu.Lock()
	other, ok := s.gpus[g.PCIAddress]
	at := s.at
	old := time.Since(at) > smiOld*s.interval
	if g.Energy.Known {
		s.kernelEnergy[g.PCIAddress] = true
	}
	if s.kernelEnergy[g.PCIAddress] {
		other.Energy = model.Optional{}
	}
	s.mu.Unlock()
	if !ok || old {
		return
	}
	g.Name, g.Serial = cmp.Or(g.Name, other.Name), cmp.Or(g.Serial, other.Serial)
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
	if other.Energy.Known && g.Energy == other.Energy {
		g.EnergyRead = at
	}
	if g.Temperatures == nil {
		g.Temperatures = other.Temperatures
	}
}
