// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// Limits per container. The author of a container chooses its labels and annotations, which become labels of metrics.
const (
	maxString  = 256
	maxImage   = 512
	maxPath    = 4096
	maxLabels  = 64
	maxDevices = 1024
)

// bound replaces invalid strings in c, cuts long strings, and returns c.
func bound(c *model.Container) *model.Container {
	for _, s := range []*string{
		&c.ID, &c.Runtime, &c.Name, &c.Namespace, &c.Pod, &c.PodUID, (*string)(&c.Status), &c.Health,
	} {
		*s = clean(*s, maxString)
	}
	c.Image, c.ImageID = clean(c.Image, maxImage), clean(c.ImageID, maxImage)
	c.Cgroup = clean(c.Cgroup, maxPath)
	c.PID = max(c.PID, 0)
	for _, list := range []*[]string{&c.Devices, &c.GPURequests} {
		if len(*list) > maxDevices {
			*list = slices.Clone((*list)[:maxDevices])
		}
		for i, name := range *list {
			(*list)[i] = clean(name, maxString)
		}
	}
	if len(c.Labels) == 0 {
		return c
	}
	labels := make(map[string]string, min(len(c.Labels), maxLabels))
	for _, name := range slices.Sorted(maps.Keys(c.Labels)) {
		if len(labels) < maxLabels {
			labels[clean(name, maxString)] = valid(c.Labels[name], maxString)
		}
	}
	c.Labels = labels
	return c
}

// clean returns at most n bytes of s as valid UTF-8, with control characters replaced.
func clean(s string, n int) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, valid(s, n))
}

// valid returns at most n bytes of s as valid UTF-8. The value of a label may have several lines.
func valid(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for i := 1; i < 4 && i <= len(s); i++ { // a cut rune
			if c := s[len(s)-i]; c >= 0xc0 {
				s = s[:len(s)-i]
				break
			} else if c < 0x80 {
				break
			}
		}
	}
	return strings.ToValidUTF8(s, "?")
}

// pick returns the named entries of the maps, or nil without entries. A later map overrides an earlier map.
func pick(names []string, from ...map[string]string) map[string]string {
	var out map[string]string
	for _, name := range names {
		for _, m := range from {
			if v, ok := m[name]; ok {
				if out == nil {
					out = map[string]string{}
				}
				out[name] = v
			}
		}
	}
	return out
}

// isID reports whether s is 64 hexadecimal digits: the form of all runtimes except containerd's own clients.
func isID(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
