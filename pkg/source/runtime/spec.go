// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
)

const maxSpec = 4 << 20

// spec holds the used fields of a container's OCI runtime specification.
type spec struct {
	Annotations map[string]string `json:"annotations"`
	Hooks       struct {
		Prestart        []hook `json:"prestart"`
		CreateRuntime   []hook `json:"createRuntime"`
		CreateContainer []hook `json:"createContainer"`
	} `json:"hooks"`
	Linux struct {
		CgroupsPath string `json:"cgroupsPath"`
		Devices     []struct {
			Path string `json:"path"`
		} `json:"devices"`
		Resources struct {
			Devices []deviceRule `json:"devices"`
		} `json:"resources"`
	} `json:"linux"`
}

// hook is a program that runs before the container's own.
type hook struct {
	Path string   `json:"path"`
	Args []string `json:"args"`
}

// deviceRule is a rule of the device cgroup; a missing field matches any value.
type deviceRule struct {
	Allow  bool   `json:"allow"`
	Type   string `json:"type"`
	Major  *int64 `json:"major"`
	Minor  *int64 `json:"minor"`
	Access string `json:"access"`
}

// parseSpec parses a specification. It returns the zero value on an error.
func parseSpec(b []byte) spec {
	var s spec
	if len(b) > maxSpec || json.Unmarshal(b, &s) != nil {
		return spec{}
	}
	return s
}

// devices returns the device nodes; without devices an empty list, not nil.
func (s *spec) devices() []string {
	out := make([]string, 0, min(len(s.Linux.Devices), maxDevices))
	for _, d := range s.Linux.Devices {
		if strings.HasPrefix(d.Path, "/dev/") && len(out) < maxDevices {
			out = append(out, d.Path)
		}
	}
	return out
}

// cgroup returns the cgroup in which the specification puts the container, as a path below the root of the hierarchy.
func (s *spec) cgroup() string {
	p := s.Linux.CgroupsPath
	if p == "" {
		return ""
	}
	if parts := strings.Split(p, ":"); len(parts) == 3 && !strings.Contains(p, "/") {
		return unitPath(parts[0], parts[1], parts[2])
	}
	if p = path.Clean("/" + p); p == "/" {
		return ""
	}
	return p
}

// inPod reports whether the specification puts the container into the cgroup of the pod with this UID, in the format of
// the kubelet: /kubepods/burstable/podUID/ID or kubepods-burstable-podUID.slice:PREFIX:ID.
func (s *spec) inPod(uid string) bool {
	p := s.Linux.CgroupsPath
	if uid == "" || !strings.Contains(p, "kubepods") {
		return false
	}
	slice := "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	return slices.ContainsFunc(strings.FieldsFunc(p, func(r rune) bool { return r == '/' || r == ':' }),
		func(part string) bool { return part == "pod"+uid || strings.HasSuffix(part, slice) })
}

// unitPath returns the cgroup of the unit that runc creates for SLICE:PREFIX:NAME: a-b.slice is within a.slice.
func unitPath(slice, prefix, name string) string {
	if slice == "" {
		slice = "system.slice"
	}
	stem, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "" {
		return ""
	}
	var p strings.Builder
	if stem != "-" {
		for i := range len(stem) {
			if stem[i] == '-' {
				p.WriteString("/" + stem[:i] + ".slice")
			}
			if p.Len() > maxPath {
				return ""
			}
		}
		p.WriteString("/" + slice)
	}
	if strings.HasSuffix(name, ".slice") {
		return p.String() + "/" + name
	}
	if prefix != "" {
		name = prefix + "-" + name
	}
	return p.String() + "/" + name + ".scope"
}

// criRecord holds the used fields of the JSON record that containerd's CRI plugin stores with each container and
// sandbox.
type criRecord struct {
	Metadata struct {
		ImageRef string
		Config   struct {
			Metadata struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
				UID       string `json:"uid"`
				Attempt   uint32 `json:"attempt"`
			} `json:"metadata"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
			criDevices
		}
	}
}

// criDevices holds the devices in a container's configuration of the CRI.
type criDevices struct {
	CDI []struct {
		Name string `json:"name"`
	} `json:"CDI_devices"`
}

func (d *criDevices) gpuRequests(out []string) []string {
	for i := range d.CDI {
		out = cdiRequested(out, d.CDI[i].Name)
	}
	return out
}

func parseCRIRecord(b []byte) (criRecord, bool) {
	var m criRecord
	if len(b) == 0 || len(b) > maxSpec || json.Unmarshal(b, &m) != nil {
		return criRecord{}, false
	}
	return m, true
}
