// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

// encode encodes a message with the types of its own package, as the runtimes do.
func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAllDevices(t *testing.T) {
	rule := func(allow bool, kind, access string, numbers ...int64) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Access: access}
		if len(numbers) > 0 {
			r.Major = &numbers[0]
		}
		if len(numbers) > 1 {
			r.Minor = &numbers[1]
		}
		return r
	}
	none := rule(false, "", "rwm")
	for name, tt := range map[string]struct {
		rules []specs.LinuxDeviceCgroup
		want  bool
	}{
		"no rules":              {nil, false},
		"none":                  {[]specs.LinuxDeviceCgroup{none}, false},
		"privileged":            {[]specs.LinuxDeviceCgroup{rule(true, "", "rwm")}, true},
		"after none":            {[]specs.LinuxDeviceCgroup{none, rule(true, "a", "rwm", -1, -1)}, true},
		"and none after it":     {[]specs.LinuxDeviceCgroup{rule(true, "a", "rwm"), none}, false},
		"nor reading":           {[]specs.LinuxDeviceCgroup{rule(true, "a", "rwm"), rule(false, "c", "r")}, false},
		"character devices":     {[]specs.LinuxDeviceCgroup{none, rule(true, "c", "rw")}, true},
		"block devices":         {[]specs.LinuxDeviceCgroup{none, rule(true, "b", "rwm")}, false},
		"may make nodes":        {[]specs.LinuxDeviceCgroup{none, rule(true, "c", "m")}, false},
		"may read":              {[]specs.LinuxDeviceCgroup{none, rule(true, "a", "r")}, false},
		"may make none":         {[]specs.LinuxDeviceCgroup{rule(true, "a", "rwm"), rule(false, "a", "m")}, true},
		"one driver's":          {[]specs.LinuxDeviceCgroup{none, rule(true, "c", "rwm", 195)}, false},
		"one device":            {[]specs.LinuxDeviceCgroup{none, rule(true, "c", "rwm", 195, 0)}, false},
		"all but one":           {[]specs.LinuxDeviceCgroup{rule(true, "", "rwm"), rule(false, "c", "rwm", 195, 0)}, true},
		"any access, any thing": {[]specs.LinuxDeviceCgroup{rule(true, "", "")}, true},
	} {
		s := parseSpec(encode(t, &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: tt.rules}}}))
		if got := s.allDevices(); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// ctrHook is the hook that ctr and nerdctl write for --gpus.
func ctrHook(args ...string) specs.Hook {
	return specs.Hook{Path: "/usr/bin/containerd", Args: slices.Concat(
		[]string{"containerd", "oci-hook", "--", "/usr/bin/nvidia-container-cli", "--load-kmods", "configure"},
		args, []string{"--compute", "--utility", "--pid={{pid}}", "{{rootfs}}"},
	)}
}

func prestart(hooks ...specs.Hook) *specs.Hooks {
	return &specs.Hooks{Prestart: hooks} //nolint:staticcheck // deprecated, as above
}

func TestGPURequestsOfSpec(t *testing.T) {
	const uuid = "GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5"
	for name, tt := range map[string]struct {
		spec specs.Spec
		want []string
	}{
		"none":       {specs.Spec{}, nil},
		"ctr --gpus": {specs.Spec{Hooks: prestart(ctrHook("--device=0,1"))}, []string{"0", "1"}},
		"nerdctl":    {specs.Spec{Hooks: &specs.Hooks{CreateRuntime: []specs.Hook{ctrHook("--device=all")}}}, []string{"all"}},
		"by UUID":    {specs.Spec{Hooks: &specs.Hooks{CreateContainer: []specs.Hook{ctrHook("--device=" + uuid)}}}, []string{uuid}},
		"twice":      {specs.Spec{Hooks: prestart(ctrHook("--device=0"), ctrHook("--device=0"))}, []string{"0"}},
		"no device":  {specs.Spec{Hooks: prestart(ctrHook("--device=none"))}, nil},
		"another's":  {specs.Spec{Hooks: prestart(specs.Hook{Path: "/bin/x", Args: []string{"x", "--device=0"}})}, nil},
		"before it":  {specs.Spec{Hooks: prestart(specs.Hook{Path: "/x", Args: []string{"--device=0", "nvidia-container-cli"}})}, nil},
		"by the image": {specs.Spec{
			Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}},
			Hooks: prestart(specs.Hook{
				Path: "/usr/bin/nvidia-container-runtime-hook", Args: []string{"nvidia-container-runtime-hook", "prestart"},
			}),
		}, nil},
		"CDI": {specs.Spec{Annotations: map[string]string{
			"cdi.k8s.io/nvidia-device-plugin_uuid": "nvidia.com/gpu=" + uuid + ", nvidia.com/gpu=0:1",
			"cdi.k8s.io/amd":                       "amd.com/gpu=0,amd.com/gpu=all,intel.com/gpu=card0,vendor.com/net=eth0",
			"cdi.k8s.io/bad":                       "nvidia.com/gpu,nvidia.com/gpu=,=0,",
			"other":                                "nvidia.com/gpu=7",
		}}, []string{"0:1", uuid, "amd.com/gpu=all", "intel.com/gpu=card0"}},
	} {
		s := parseSpec(encode(t, &tt.spec))
		if d := cmp.Diff(tt.want, s.gpuRequests()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestRecordDevices checks a container of containerd's CRI plugin, as containerd stores it.
func TestRecordDevices(t *testing.T) {
	config := api.ContainerConfig{
		Metadata:    &api.ContainerMetadata{Name: "main"},
		Annotations: map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=2"},
		CDIDevices:  []*api.CDIDevice{{Name: "nvidia.com/gpu=GPU-5"}, {Name: "vendor.com/net=eth0"}},
	}
	meta := encode(t, map[string]any{"Version": "v1", "Metadata": map[string]any{"Config": &config}})
	privileged := encode(t, &specs.Spec{
		Linux: &specs.Linux{
			Devices:   []specs.LinuxDevice{{Path: "/dev/nvidia0"}, {Path: "/dev/kvm"}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	})
	r := newRecord("k8s.io", &containers.Container{
		ID: strings.Repeat("ab", 32), Spec: &anypb.Any{Value: privileged},
		Extensions: map[string]*anypb.Any{extensionContainer: {Value: meta}},
	}, nil)
	if !r.AllDevices || !slices.Equal(r.GPURequests, []string{"2", "GPU-5"}) || len(r.Devices) != 2 {
		t.Errorf("%+v", r.Container)
	}
	// The same in the answer of its CRI.
	var c model.Container
	parseInfo(&c, encode(t, map[string]any{"pid": 7, "config": &config, "runtimeSpec": json.RawMessage(privileged)}))
	if !c.AllDevices || !slices.Equal(c.GPURequests, []string{"2", "GPU-5"}) || c.PID != 7 {
		t.Errorf("%+v", c)
	}
}

func TestDockerGPUs(t *testing.T) {
	gpu := [][]string{{"gpu"}}
	for name, tt := range map[string]struct {
		requests []container.DeviceRequest
		want     []string
	}{
		"none":              {nil, nil},
		"--gpus all":        {[]container.DeviceRequest{{Count: -1, Capabilities: gpu}}, []string{"all"}},
		"--gpus 2":          {[]container.DeviceRequest{{Count: 2, Capabilities: gpu}}, []string{"0", "1"}},
		"--gpus device":     {[]container.DeviceRequest{{DeviceIDs: []string{"1", "GPU-5", "0:1"}, Capabilities: gpu}}, []string{"1", "GPU-5", "0:1"}},
		"by the driver":     {[]container.DeviceRequest{{Driver: "nvidia", Count: -1}}, []string{"all"}},
		"one of two sets":   {[]container.DeviceRequest{{Count: -1, Capabilities: [][]string{{"x"}, {"compute", "gpu"}}}}, []string{"all"}},
		"to monitor":        {[]container.DeviceRequest{{Driver: "nvidia", Count: -1, Capabilities: [][]string{{"utility"}}}}, nil},
		"no GPU":            {[]container.DeviceRequest{{Count: -1, Capabilities: [][]string{{"tpu"}}}}, nil},
		"another driver":    {[]container.DeviceRequest{{Driver: "x", Count: -1, Capabilities: gpu}}, nil},
		"none of them":      {[]container.DeviceRequest{{Count: 0, Capabilities: gpu}}, nil},
		"CDI":               {[]container.DeviceRequest{{Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=0", "x.com/y=1"}}}, []string{"0"}},
		"AMD":               {[]container.DeviceRequest{{Driver: "amd", Count: -1, Capabilities: gpu}}, []string{"amd.com/gpu=all"}},
		"a number of AMD's": {[]container.DeviceRequest{{Driver: "amd", DeviceIDs: []string{"0"}, Capabilities: gpu}}, nil},
	} {
		i := container.InspectResponse{HostConfig: &container.HostConfig{Resources: container.Resources{DeviceRequests: tt.requests}}}
		got := inspected(t, &i)
		if d := cmp.Diff(tt.want, got.GPURequests); d != "" || got.AllDevices {
			t.Errorf("%s: %v (-want +got):\n%s", name, got.AllDevices, d)
		}
	}
	i := container.InspectResponse{HostConfig: &container.HostConfig{Privileged: true}}
	if c := inspected(t, &i); !c.AllDevices {
		t.Errorf("privileged: %+v", c)
	}
}

// The number of a client's requests has a limit.
func TestGPURequestsAreBounded(t *testing.T) {
	many := dockerGPUs([]dockerRequest{{Driver: "nvidia", Count: 1 << 40}, {Driver: "nvidia", DeviceIDs: []string{"GPU-1"}}})
	if len(many) != maxDevices {
		t.Errorf("%d requests", len(many))
	}
	c := bound(&model.Container{GPURequests: []string{strings.Repeat("x", 2*maxString), "a\x00\xff"}})
	if len(c.GPURequests[0]) != maxString || c.GPURequests[1] != "a??" {
		t.Errorf("%q", c.GPURequests)
	}
}

// The devices of a container are kept when a later event does not contain them.
func TestDescribeDevices(t *testing.T) {
	known := model.Container{ID: "a"}
	describe(&known, &model.Container{ID: "a", AllDevices: true, GPURequests: []string{"0"}})
	describe(&known, &model.Container{ID: "a"})
	if !known.AllDevices || !slices.Equal(known.GPURequests, []string{"0"}) {
		t.Errorf("%+v", known)
	}
}
