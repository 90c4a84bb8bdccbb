// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
)

// FuzzLine inserts a line into each file: what the other lines give does not change.
func FuzzLine(f *testing.F) {
	sameName := func(line, _ string) bool { // another value of a property
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		return strings.Contains("drm_render_minor location_id domain unique_id simd_count simd_per_cu num_sdma_engines num_sdma_xgmi_engines", name)
	}
	linetest.Fuzz(f, []linetest.Parser{
		{
			Name: "properties", Text: "simd_count 304\nsimd_per_cu 4\nlocation_id 49408\ndomain 0\ndrm_render_minor 128\nunique_id 77\nnum_sdma_engines 2\n",
			Parse: func(b []byte) map[string]string { return map[string]string{"node": fmt.Sprint(parseProperties(b))} }, Replaces: sameName,
		},
		{Name: "err_count", Text: "ue: 0\nce: 3\n", Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			for _, e := range parseErrors("umc", b) {
				out[e.Type] = fmt.Sprint(e.Count)
			}
			return out
		}},
		{Name: "fdinfo of Linux 5.14", Text: "pos:\t0\npdev:\t0000:c1:00.0\npasid:\t32770\nvram mem:\t100 kB\n", Parse: func(b []byte) map[string]string {
			c, ok := parseOldFdinfo(b)
			if !ok {
				return nil
			}
			return map[string]string{"client": fmt.Sprint(c)}
		}, Replaces: func(line, _ string) bool {
			key, _, _ := strings.Cut(line, ":")
			key = strings.TrimSpace(key)
			return key == "pdev" || key == "pasid" || key == "vram mem" || key == "drm-driver"
		}},
	})
}
