// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	gocmp "github.com/google/go-cmp/cmp"
)

const configurationPage = "../../docs/configuration.md"

const configurationIntro = `<!-- Generated from the flags of pkg/config by go test ./pkg/config -run TestConfigurationPage -update; do not edit. -->

# Configuration

Every option is a command-line flag, an environment variable and a key of a YAML file. The command line overrides the
environment, the environment overrides the file, and the file overrides the default. ` + "`" + `--gpu.process-interval` + "`" + ` is
` + "`" + `ACCELSCOPE_GPU_PROCESS_INTERVAL` + "`" + ` in the environment and ` + "`" + `gpu.process-interval` + "`" + ` in the file, which ` + "`" + `--config.file` + "`" + ` names:

` + "```yaml" + `
collector.node: false
rdma.datapath: "survey"          # quote on, off, yes and no: YAML reads them as booleans
workload.labels: [team, app.kubernetes.io/name]
` + "```" + `

- An unknown key is an error. ` + "`" + `accelscope check --config.file=FILE` + "`" + ` checks a file and starts nothing.
- Lists are separated by commas, repeated on the command line, or YAML lists in the file.
- Changes take effect at the next start. ` + "`" + `--web.config.file` + "`" + ` configures TLS and basic authentication, as for every
  Prometheus exporter.

Below, ` + "`" + `--log.level=info` + "`" + ` shows the default; a value in capitals has no default. Switches with ` + "`" + `[no-]` + "`" + ` are on by default, other
switches are off.
`

// configurationSections are the tables of the page. A flag belongs to the first section that lists its name or its prefix.
var configurationSections = []struct {
	title string
	names []string
}{
	{"General", []string{"config.", "log.", "grace", "state.", "strict"}},
	{"HTTP and metrics", []string{"web.", "metrics."}},
	{"The node", []string{"path.", "node."}},
	{"Collectors", []string{"collector."}},
	{"RDMA", []string{"probe.", "rdma.", "link."}},
	{"Names of workloads", []string{"runtime.", "workload.", "container.", "kubelet."}},
	{"GPUs", []string{"gpu.", "collective.", "job."}},
	{"InfiniBand fabric", []string{"fabric."}},
	{"Events", []string{"events."}},
}

// TestConfigurationPage keeps docs/configuration.md equal to the flags.
func TestConfigurationPage(t *testing.T) {
	var c CLI
	ctx, err := parse(&c, nil, "", io.Discard, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := configuration(t, ctx.Model.Node)
	if *update {
		if err := os.WriteFile(configurationPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s differs from the flags (go test -update writes it):\n%s", configurationPage, diff)
	}
}

// configuration returns the page: the flags of the sensor by section, then those that only another command has.
func configuration(t *testing.T, app *kong.Node) string {
	t.Helper()
	var page strings.Builder
	page.WriteString(configurationIntro)
	sensor := map[string]bool{"help": true, "version": true}
	var flags []*kong.Flag
	for _, command := range app.Children {
		if command.Name == "run" {
			flags = slices.Concat(app.Flags, command.Flags)
		}
	}
	written := 0
	for _, section := range configurationSections {
		fmt.Fprintf(&page, "\n## %s\n\n", section.title)
		for _, flag := range flags {
			of := func(name string) bool {
				return flag.Name == name || strings.HasSuffix(name, ".") && strings.HasPrefix(flag.Name, name)
			}
			if !sensor[flag.Name] && slices.ContainsFunc(section.names, of) {
				page.WriteString(configurationLine(flag))
				sensor[flag.Name] = true
				written++
			}
		}
	}
	for _, flag := range flags {
		if !sensor[flag.Name] {
			t.Errorf("--%s belongs to no section of %s", flag.Name, configurationPage)
		}
	}
	if written < 50 {
		t.Errorf("the sensor has %d flags, want 50 or more", written)
	}
	for _, command := range app.Leaves(true) {
		own := slices.DeleteFunc(slices.Clone(command.Flags), func(f *kong.Flag) bool { return sensor[f.Name] })
		if len(own) == 0 {
			continue
		}
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n", command.FullPath(), command.Help)
		for _, flag := range own {
			page.WriteString(configurationLine(flag))
		}
	}
	return page.String()
}

// configurationLine returns the line of a flag: its name with the default or a placeholder, names in the environment that do
// not follow from the flag, and its help.
func configurationLine(flag *kong.Flag) string {
	name, also := flag.Name, ""
	switch {
	case flag.Tag.Negatable != "":
		name = "[no-]" + name
	case !flag.IsBool():
		name += "=" + cmp.Or(flag.Default, placeholder(flag))
	}
	usual := "ACCELSCOPE_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(flag.Name))
	for _, env := range flag.Envs {
		if env != usual {
			also += ", `" + env + "`"
		}
	}
	return fmt.Sprintf("- `--%s`%s: %s\n", name, also, flag.Help)
}

// placeholder returns the placeholder for the value of a flag.
func placeholder(flag *kong.Flag) string {
	name := flag.PlaceHolder
	switch flag.Target.Interface().(type) {
	case time.Duration:
		name = cmp.Or(name, "DURATION")
	case int, uint32, float64:
		name = cmp.Or(name, "NUMBER")
	}
	name = cmp.Or(name, "VALUE")
	if flag.IsSlice() {
		name += ",…"
	}
	return name
}
