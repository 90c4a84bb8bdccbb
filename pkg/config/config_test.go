// SPDX-License-Identifier: Apache-2.0

package config

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// parseArgs parses with the content of a configuration file, if there is any.
func parseArgs(t *testing.T, file string, args ...string) (*CLI, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "accelscope.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config.file="+path)
	}
	var c CLI
	_, err := parse(&c, args, "", io.Discard, io.Discard, func(int) { t.Error("exit") })
	return &c, err
}

func TestDefaults(t *testing.T) {
	t.Setenv("ACCELSCOPE_STATE_DIR", "") // restores it
	if err := os.Unsetenv("ACCELSCOPE_STATE_DIR"); err != nil {
		t.Fatal(err)
	}
	c, err := parseArgs(t, "")
	if err != nil {
		t.Fatal(err)
	}
	want := RunCommand{
		SensorFlags: SensorFlags{
			Sysfs: "/sys", Procfs: "/proc", Cgroup: "/sys/fs/cgroup", Host: "/", StateDir: "/var/lib/accelscope",
			RDMA: true, PCI: true, Link: true, LinkFlags: LinkFlags{Modules: true}, CgroupTree: true, Probe: true, Containers: true, Scope: "auto", NetExclude: podInterfaces, Node: true, KernelLog: true, Runtime: true,
			KubeletFlags: KubeletFlags{
				Kubelet:         true,
				KubeletInterval: 15 * time.Second,
			},
			DataPathFlags: DataPathFlags{
				DataPath: "off", PathBudget: 0.01, PathLimit: 4096, QPCounters: "off", StallAfter: 10 * time.Second,
				SurveyLength: 10 * time.Second, SurveyInterval: 10 * time.Minute,
			},
			FabricFlags: FabricFlags{FabricInterval: time.Minute, FabricParallel: 4},
			GPUFlags:    GPUFlags{GPU: true, Access: true, GPUInterval: 5 * time.Second, StuckAfter: 30 * time.Second, GPUDetail: "basic", JobStall: 30 * time.Second, IdleEnergy: "owner"},
			Tier:        "auto", Grace: 5 * time.Minute, AttachLimit: 100 * time.Millisecond, MaxMappings: 5000,
		},
		WebFlags:   WebFlags{ListenFlags: ListenFlags{ListenAddress: []string{":9847"}}, TelemetryPath: "/metrics", Pages: true, History: true, MetricsFlags: MetricsFlags{Compat: []string{"lens"}, Exclude: "node_cpu_guest_seconds_total", States: "current", Forms: []string{"classic", "native"}}},
		EventFlags: EventFlags{QueueSize: 8192},

		ControlFlags: ControlFlags{Socket: "/run/accelscope/control.sock"},
	}
	if diff := cmp.Diff(want, c.Run); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// The command line overrides the environment, which overrides the file, which overrides the default.
func TestPrecedence(t *testing.T) {
	const file = "grace: 3m\n"
	grace := func(args ...string) time.Duration {
		t.Helper()
		c, err := parseArgs(t, file, args...)
		if err != nil {
			t.Fatal(err)
		}
		return c.Run.Grace
	}
	if got := grace(); got != 3*time.Minute {
		t.Errorf("file: %v, want 3m", got)
	}
	t.Setenv("ACCELSCOPE_GRACE", "2m")
	if got := grace(); got != 2*time.Minute {
		t.Errorf("environment and file: %v, want 2m", got)
	}
	if got := grace("--grace=1m"); got != time.Minute {
		t.Errorf("all: %v, want 1m", got)
	}
}

func TestConfigFile(t *testing.T) {
	c, err := parseArgs(t, `# every kind of value
web.listen-address: ["127.0.0.1:1", "[::1]:2"]
web.telemetry-path: /m
collector.probe: false
probe.map-entries: 16
metrics.compat: node_exporter, # not a list
grace: 90s
strict: true
log.level: debug
`)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"127.0.0.1:1", "[::1]:2"}; !slices.Equal(c.Run.ListenAddress, want) {
		t.Errorf("listen addresses %q, want %q", c.Run.ListenAddress, want)
	}
	if c.Run.TelemetryPath != "/m" || c.Run.Probe || c.Run.MapEntries != 16 || c.Run.Grace != 90*time.Second ||
		!c.Run.Strict || c.LogLevel != "debug" {
		t.Errorf("values are lost: %+v", c)
	}
}

func TestConfigErrors(t *testing.T) {
	tests := map[string]struct {
		file string
		args []string
		want string
	}{
		"unknown key":             {file: "grace: 1m\nweb.listen: x\n", want: `line 2: unknown key "web.listen"`},
		"nested key":              {file: "web:\n  telemetry-path: /m\n", want: `line 1: unknown key "web"`},
		"key of another command":  {file: "interval: 1s\ngarce: 1m\n", want: `line 2: unknown key "garce"`},
		"key that is no setting":  {file: "help: true\n", want: `line 1: unknown key "help"`},
		"twice":                   {file: "grace: 1m\ngrace: 2m\n", want: `line 2: "grace" is already set in line 1`},
		"bad value":               {file: "\ngrace: soon\n", want: `line 2: --grace`},
		"value not of the set":    {file: "probe.tier: magic\n", want: `--probe.tier must be one of`},
		"list for one value":      {file: "grace: [1m]\n", want: `line 1: want one value`},
		"mapping for a list":      {file: "metrics.compat: {a: b}\n", want: `line 1: want a value or a list`},
		"no value":                {file: "grace:\n", want: `line 1: want one value`},
		"alias":                   {file: "grace: &a 1m\nstrict: *a\n", want: `line 2: want one value`},
		"a list":                  {file: "- grace\n", want: `line 1: want keys and values`},
		"a key that is a mapping": {file: "{a: b}: c\n", want: `line 1: a key must be the name`},
		"two documents":           {file: "grace: 1m\n---\nstrict: true\n", want: `more than one YAML document`},
		"not YAML":                {file: "grace: [\n", want: `line 1`},
		"no such file":            {args: []string{"--config.file=/does/not/exist"}, want: `no such file`},
		"unknown flag":            {args: []string{"--web.listen=x"}, want: `unknown flag --web.listen`},
		"unknown compat set":      {args: []string{"--metrics.compat=lens,cadvisor"}, want: `--metrics.compat must be one of`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parseArgs(t, tt.file, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one with %q", err, tt.want)
			}
		})
	}
}

// Every flag is an environment variable and a key of the file.
func TestEveryFlagEverywhere(t *testing.T) {
	var c CLI
	ctx, err := parse(&c, nil, "", io.Discard, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range ctx.Flags() {
		if slices.Contains([]string{"help", "version", "config.file"}, flag.Name) {
			continue
		}
		env := "ACCELSCOPE_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(flag.Name))
		want := []string{env}
		if name, ok := strings.CutPrefix(flag.Name, "node."); ok { // manifests customarily set these from the downward API
			want = append(want, "NODE_"+strings.ToUpper(name))
		}
		if !slices.Equal(flag.Envs, want) {
			t.Errorf("--%s: environment %q, want %q", flag.Name, flag.Envs, want)
		}
		file, err := parseConfigFile("f", []byte(flag.Name+": x\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := file.checkKeys(ctx.Model); err != nil {
			t.Error(err)
		}
	}
}

// A Service called accelscope makes Kubernetes set these in every pod.
func TestForeignEnvironment(t *testing.T) {
	t.Setenv("ACCELSCOPE_PORT", "tcp://10.0.0.1:9847")
	t.Setenv("ACCELSCOPE_SERVICE_HOST", "10.0.0.1")
	if _, err := parseArgs(t, ""); err != nil {
		t.Error(err)
	}
}

// FuzzConfig: any file is rejected with an error, or all its keys are names of flags.
func FuzzConfig(f *testing.F) {
	f.Add([]byte("grace: 1m\nweb.listen-address: [a, b]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? {}\n: !!binary x\n"))
	f.Add([]byte("---\n...\n"))
	parser, err := kong.New(&CLI{}, kong.DefaultEnvars("ACCELSCOPE"), flagVars)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parseConfigFile("f", data)
		if err != nil || file.checkKeys(parser.Model) != nil {
			return
		}
		resolved := 0
		err = kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
			if flag, ok := node.(*kong.Flag); ok && file.values[flag.Name] != nil {
				resolved++
				_, _ = file.Resolve(nil, nil, flag)
			}
			return next(nil)
		})
		if err != nil {
			t.Fatal(err)
		}
		if resolved < len(file.keys) {
			t.Errorf("%d keys, but only %d are names of flags", len(file.keys), resolved)
		}
	})
}
