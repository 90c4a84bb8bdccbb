// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"gopkg.in/yaml.v3"
)

// scaled is the part of a configuration for many nodes that the tests read.
type scaled struct {
	Global struct {
		External map[string]string `yaml:"external_labels"`
	}
	Scrape []struct {
		Relabel []*relabel.Config `yaml:"relabel_configs"`
		Metrics []*relabel.Config `yaml:"metric_relabel_configs"`
	} `yaml:"scrape_configs"`
	Remote []struct {
		Relabel []*relabel.Config `yaml:"write_relabel_configs"`
	} `yaml:"remote_write"`
}

// TestScale: the configurations for many nodes are valid. With the shard numbers in place of 0, each target belongs to
// one shard, and no shard has all targets. The filter keeps exactly what rules read.
func TestScale(t *testing.T) {
	for file, shards := range map[string]int{"agent.yml": 4, "shard.yml": 2} {
		path := filepath.Join(root, "scale", file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), fmt.Sprint("modulus: ", shards)); n != 1 {
			t.Errorf("%s: modulus %d is there %d times", file, shards, n)
		}
		owners, most := map[string]int{}, 0
		for shard := range shards {
			changed := regexp.MustCompile(`((?:regex|shard): )"0"`).ReplaceAllString(string(text), fmt.Sprintf(`${1}"%d"`, shard))
			c := checked(t, file, changed)
			if c.Global.External["shard"] != "" && c.Global.External["shard"] != fmt.Sprint(shard) {
				t.Errorf("%s: shard %d is called %s", file, shard, c.Global.External["shard"])
			}
			n := 0
			for i := range 1000 {
				target := fmt.Sprintf("gpu%04d:9847", i)
				if kept(t, c.Scrape[0].Relabel, labels.FromStrings("__address__", target)) {
					owners[target]++
					n++
				}
			}
			most = max(most, n)
			keep := c.filter()
			for name, want := range map[string]bool{"up": true, "container_rdma_verbs_duration_seconds_bucket": true, "node_vmstat_pgfault": false} {
				if got := kept(t, keep, labels.FromStrings("__name__", name)); got != want {
					t.Errorf("%s: %s is kept: %v", file, name, got)
				}
			}
		}
		for target, n := range owners {
			if n != 1 {
				t.Errorf("%s: %s is in %d shards", file, target, n)
			}
		}
		if len(owners) != 1000 || most > 1500/shards {
			t.Errorf("%s: %d targets in shards, at most %d in one", file, len(owners), most)
		}
	}
}

// filter returns the relabeling of series.
func (c scaled) filter() []*relabel.Config {
	if len(c.Remote) > 0 {
		return c.Remote[0].Relabel
	}
	return c.Scrape[0].Metrics
}

// kept reports whether Prometheus's relabeling keeps the labels.
func kept(t *testing.T, configs []*relabel.Config, l labels.Labels) bool {
	t.Helper()
	for _, c := range configs {
		if err := c.Validate(model.UTF8Validation); err != nil {
			t.Fatal(err)
		}
	}
	return relabel.ProcessBuilder(labels.NewBuilder(l), configs...)
}

// checked checks a configuration with promtool, and returns it.
func checked(t *testing.T, file, text string) scaled {
	t.Helper()
	path := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"check", "config", path}
	if strings.HasPrefix(file, "agent") {
		args = []string{"check", "config", "--agent", path}
	}
	if out, err := promtool(t, args...); err != nil {
		t.Fatalf("%s: %s", file, out)
	}
	var c scaled
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Scrape) != 1 {
		t.Fatalf("%s: %d jobs", file, len(c.Scrape))
	}
	return c
}
