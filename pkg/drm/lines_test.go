// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
)

// FuzzLine inserts a line into a file of fdinfo: the other lines' values do not change.
func FuzzLine(f *testing.F) {
	linetest.Fuzz(f, []linetest.Parser{{
		Name: "fdinfo",
		Text: "pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:c1:00.0\ndrm-client-id:\t7\n" +
			"drm-resident-vram:\t100 KiB\ndrm-engine-gfx:\t5 ns\ndrm-cycles-rcs:\t6\ndrm-total-cycles-rcs:\t60\n",
		Parse: func(b []byte) map[string]string {
			c, ok := ParseFdinfo(b)
			out := map[string]string{}
			if c.Driver != "" {
				out["drm-driver"] = c.Driver
			}
			if ok {
				out["drm-client-id"] = fmt.Sprint(c.ID)
			}
			if c.PCIAddress != "" {
				out["drm-pdev"] = c.PCIAddress
			}
			for name, size := range c.Memory {
				out["drm-resident-"+name] = fmt.Sprint(size)
			}
			for name, e := range c.Engines {
				out["drm-engine-"+name] = fmt.Sprint(e)
			}
			return out
		},
		Replaces: func(line, name string) bool {
			key, _, _ := strings.Cut(line, ":")
			key = strings.TrimSpace(key)
			key = strings.Replace(strings.Replace(key, "drm-total-cycles-", "drm-engine-", 1), "drm-cycles-", "drm-engine-", 1)
			return key == name || strings.Replace(key, "drm-engine-capacity-", "drm-engine-", 1) == name
		},
	}})
}
