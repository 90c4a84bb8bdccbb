// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"testing"
	"time"
)

// TestDecide follows signals over time. Each step has the minute, the observed signals, the instance of the driver, and
// the expected reason with the minutes left.
func TestDecide(t *testing.T) {
	label, file := signal{"label", "paused"}, signal{"file", "removed"}
	type step struct {
		minute  int
		signals []signal
		driver  uint64
		reason  string
		left    int
	}
	for name, steps := range map[string][]step{
		"no signal":                 {{0, nil, 7, "", 0}, {1, nil, 0, "", 0}, {2, nil, 8, "", 0}},
		"ends with the signal":      {{0, []signal{label}, 7, "paused", 15}, {3, []signal{label}, 7, "paused", 12}, {4, nil, 7, "", 0}},
		"ends after 15 minutes":     {{0, []signal{label}, 7, "paused", 15}, {14, []signal{label}, 7, "paused", 1}, {15, []signal{label}, 7, "", 0}},
		"not again before its end":  {{0, []signal{label}, 7, "paused", 15}, {15, []signal{label}, 7, "", 0}, {40, []signal{label}, 7, "", 0}},
		"again after its end":       {{0, []signal{label}, 7, "paused", 15}, {15, []signal{label}, 7, "", 0}, {16, nil, 7, "", 0}, {17, []signal{label}, 7, "paused", 15}},
		"unloaded":                  {{0, []signal{label}, 7, "paused", 15}, {1, []signal{label}, 0, "paused", 14}},
		"reloaded":                  {{0, []signal{label}, 7, "paused", 15}, {1, []signal{label}, 0, "paused", 14}, {2, []signal{label}, 8, "", 0}, {3, []signal{label}, 8, "", 0}},
		"reloaded between checks":   {{0, []signal{label}, 7, "paused", 15}, {1, []signal{label}, 8, "", 0}},
		"paused before it is there": {{0, []signal{label}, 0, "paused", 15}, {1, []signal{label}, 7, "", 0}},
		"paused after a reload":     {{0, nil, 7, "", 0}, {1, []signal{label}, 8, "paused", 15}},
		"two signals": {
			{0, []signal{label}, 7, "paused", 15}, {1, []signal{label, file}, 7, "paused", 14}, {2, []signal{file}, 7, "removed", 14}, {16, []signal{file}, 7, "", 0},
		},
		"one is over, the other not": {{0, []signal{label}, 7, "paused", 15}, {10, []signal{file, label}, 7, "paused", 5}, {15, []signal{file, label}, 7, "removed", 10}},
		"another reason":             {{0, []signal{label}, 7, "paused", 15}, {5, []signal{{"label", "other"}}, 7, "other", 10}},
	} {
		t.Run(name, func(t *testing.T) {
			var d decision
			start := time.Now()
			for _, s := range steps {
				reason, left := d.decide(start.Add(time.Duration(s.minute)*time.Minute), s.signals, s.driver)
				if reason != s.reason || left != time.Duration(s.left)*time.Minute {
					t.Errorf("minute %d: %q for %v, want %q for %d minutes", s.minute, reason, left, s.reason, s.left)
				}
			}
		})
	}
}

func TestPaused(t *testing.T) {
	for name, tt := range map[string]struct {
		labels map[string]string
		want   []string
	}{
		"none":        {nil, nil},
		"deployed":    {map[string]string{"nvidia.com/gpu.deploy.dcgm": "true", "nvidia.com/mig.config.state": "success"}, nil},
		"not managed": {map[string]string{"nvidia.com/gpu.deploy.driver": "pre-installed"}, nil},
		"paused": {
			map[string]string{"nvidia.com/gpu.deploy.dcgm-exporter": "paused-for-driver-upgrade", "nvidia.com/gpu.deploy.nvsm": "paused-for-driver-upgrade"},
			[]string{"node label nvidia.com/gpu.deploy.dcgm-exporter=paused-for-driver-upgrade"},
		},
		"paused with a value": {
			map[string]string{"nvidia.com/gpu.deploy.client": "batch_paused-for-driver-upgrade"},
			[]string{"node label nvidia.com/gpu.deploy.client=batch_paused-for-driver-upgrade"},
		},
		"both": {
			map[string]string{"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change", "nvidia.com/mig.config.state": "pending"},
			[]string{"node label nvidia.com/mig.config.state=pending", "node label nvidia.com/gpu.deploy.dcgm=paused-for-mig-change"},
		},
		"rebooting":      {map[string]string{"nvidia.com/mig.config.state": "rebooting"}, []string{"node label nvidia.com/mig.config.state=rebooting"}},
		"failed":         {map[string]string{"nvidia.com/mig.config.state": "failed"}, nil},
		"of others":      {map[string]string{"example.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, nil},
		"value too long": {map[string]string{"nvidia.com/gpu.deploy.x": pausedValue + string(make([]byte, 64))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := paused(tt.labels)
			if len(got) != len(tt.want) {
				t.Fatalf("%q, want %q", got, tt.want)
			}
			for i := range got {
				if got[i].reason != tt.want[i] {
					t.Errorf("%q, want %q", got[i].reason, tt.want[i])
				}
			}
		})
	}
}
