// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestCgroupOfSpec(t *testing.T) {
	id := strings.Repeat("ab", 32)
	for _, c := range []struct{ path, want string }{
		{"/default/" + id, "/default/" + id},
		{"/default/web", "/default/web"},
		{"default/web/../x", "/default/x"},
		{"", ""},
		{"/", ""},
		{"user.slice:ctr:web", "/user.slice/ctr-web.scope"},
		{"a-b-c.slice:p:n", "/a.slice/a-b.slice/a-b-c.slice/p-n.scope"},
		{":p:n", "/system.slice/p-n.scope"},
		{"-.slice::n", "/n.scope"},
		{"a.slice:p:b.slice", "/a.slice/b.slice"},
		{"noslice:p:n", ""},
		{"/a:b:c", "/a:b:c"},
	} {
		var s spec
		s.Linux.CgroupsPath = c.path
		if got := s.cgroup(); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
}

// TestParseSpec parses the output of the specification's own package.
func TestParseSpec(t *testing.T) {
	b, err := json.Marshal(&specs.Spec{
		Annotations: map[string]string{"a": "b"},
		Linux: &specs.Linux{
			CgroupsPath: "x",
			Devices:     []specs.LinuxDevice{{Path: "/dev/kfd"}, {Path: "/dev/dri/card0"}, {Path: "/etc/shadow"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := parseSpec(b)
	if s.Annotations["a"] != "b" || s.Linux.CgroupsPath != "x" || !cmp.Equal(s.devices(), []string{"/dev/kfd", "/dev/dri/card0"}) {
		t.Errorf("%+v", s)
	}
	spaces := bytes.Repeat([]byte(" "), maxSpec)
	if s := parseSpec(append(b, spaces...)); s.Linux.CgroupsPath != "" {
		t.Errorf("a large specification: %+v", s)
	}
	if r, ok := parseCRIRecord(append([]byte("{}"), spaces...)); ok {
		t.Errorf("a large record: %+v", r)
	}
}

// TestLongSlice: the path of a slice grows with the square of its parts, up to the limit.
func TestLongSlice(t *testing.T) {
	for parts, want := range map[int]bool{10: true, 2000: false} {
		if p := unitPath(strings.Repeat("a-", parts)+"a.slice", "", "x"); (p != "") != want {
			t.Errorf("%d parts: %d bytes", parts, len(p))
		}
	}
}

func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"annotations":{"io.kubernetes.cri.sandbox-id":"x"},"linux":{"cgroupsPath":"a-b.slice:p:n","devices":[{"path":"/dev/kfd"}]}}`),
		[]byte(`{"Version":"v1","Metadata":{"ImageRef":"sha256:beef","Config":{"metadata":{"name":"n","attempt":3}}}}`), "id")
	f.Add([]byte(criInfo), []byte(`{}`), strings.Repeat("ab", 32))
	f.Fuzz(func(t *testing.T, spec, meta []byte, id string) {
		r := newRecord("ns", &containers.Container{
			ID: id, Image: string(meta), Labels: map[string]string{"l": string(spec)}, Spec: &anypb.Any{Value: spec},
			Extensions: map[string]*anypb.Any{extensionContainer: {Value: meta}, extensionSandbox: {Value: meta}},
		}, []string{"l", "a"})
		var c model.Container
		parseInfo(&c, spec)
		for _, c := range []*model.Container{bound(&r.Container), bound(&c)} {
			for _, s := range append([]string{c.ID, c.Name, c.Pod, c.Image, c.Cgroup, c.Labels["l"], c.Labels["a"]}, slices.Concat(c.Devices, c.GPURequests)...) {
				if len(s) > maxPath || !utf8.ValidString(s) {
					t.Errorf("%q", s)
				}
			}
			if c.Cgroup != "" && c.Cgroup[0] != '/' || c.PID < 0 || len(c.Devices) > maxDevices {
				t.Errorf("%+v", c)
			}
		}
	})
}
