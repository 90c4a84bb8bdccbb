// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestFdinfo uses the formats of several kernels, written from their amdgpu_fdinfo.c.
func TestFdinfo(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want client
		ok   bool
	}{
		"6.1": {
			text: "pasid:\t32770\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t57\ndrm-memory-vram:\t1024 KiB\n" +
				"drm-memory-gtt: \t16 KiB\ndrm-memory-cpu: \t0 KiB\ndrm-engine-gfx:\t1500 ns\ndrm-engine-enc_1:\t7 ns\n",
			want: client{
				address: "0000:03:00.0", id: 57, memory: 1 << 20, gtt: 16 << 10, counts: true,
				engines: map[string]drm.Engine{"gfx": {Busy: 1500}, "enc_1": {Busy: 7}},
			},
			ok: true,
		},
		"6.14": {
			text: fdinfo("0001:C1:00.0", 9, 3<<30, engineTime("compute", time.Second), "drm-engine-capacity-compute:\t8\n"),
			want: client{
				address: "0001:c1:00.0", id: 9, memory: 3 << 30, gtt: 2 << 20, counts: true,
				engines: map[string]drm.Engine{"compute": {Busy: 1e9, Capacity: 8}},
			},
			ok: true,
		},
		"evicted from VRAM": { // resident is less than the memory of older kernels
			text: "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t8 MiB\ndrm-resident-vram:\t0\n",
			want: client{address: "0000:03:00.0", id: 1, counts: true, engines: map[string]drm.Engine{}}, ok: true,
		},
		"5.15": {
			text: "pos:\t0\npdev:\t0000:03:00.0\npasid:\t32769\nvram mem:\t2048 kB\ngtt mem:\t8 kB\ncpu mem:\t0 kB\ngfx0:\t12.34%\n",
			want: client{address: "0000:03:00.0", id: 32769, memory: 2 << 20, gtt: 8 << 10}, ok: true,
		},
		"5.15 without an address space": {text: "pdev:\t0000:03:00.0\npasid:\t0\nvram mem:\t2048 kB\n"},
		"another driver":                {text: "drm-driver:\txe\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\npasid:\t3\n"},
		"neither format":                {text: "drm-driver:\tamdgpu\npdev:\t0000:03:00.0\npasid:\t3\nvram mem:\t2048 kB\n"},
		"no client":                     {text: "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\n"},
		"no device":                     {text: "drm-driver:\tamdgpu\ndrm-client-id:\t1\n"},
		"an eventfd":                    {text: "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\neventfd-count:                0\neventfd-id: 2\n"},
		"values that cannot be": {
			text: "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t99999999999999999 MiB\n" +
				"drm-engine-gfx:\t18446744073709551615 ns\ndrm-engine-dec:\t-5 ns\ndrm-engine-enc:\t1.5 %\ndrm-engine-\x1b[2J:\t5 ns\n" +
				"drm-engine-capacity-jpeg:\t0\ndrm-engine-" + strings.Repeat("x", 33) + ":\t5 ns\n",
			want: client{address: "0000:03:00.0", id: 1, counts: true, engines: map[string]drm.Engine{"jpeg": {}}}, ok: true,
		},
	} {
		got, ok := parseFdinfo([]byte(c.text))
		if ok != c.ok || !reflect.DeepEqual(got, c.want) && c.ok {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, ok, c.want, c.ok)
		}
	}
}

func FuzzFdinfo(f *testing.F) {
	f.Add([]byte(fdinfo("0000:c1:00.0", 9, 3<<30, engineTime("compute", time.Second), "drm-engine-capacity-compute:\t8\n")))
	f.Add([]byte("pdev:\t0000:03:00.0\npasid:\t32769\nvram mem:\t2048 kB\ngfx0:\t12.34%\n"))
	f.Add([]byte(strings.Repeat("drm-engine-a:1 ns\n", 100)))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, ok := parseFdinfo(text)
		if !ok {
			return
		}
		if !model.IsPCIAddress(c.address) || c.memory > maxMemory {
			t.Errorf("%+v", c)
		}
		if !c.counts && (c.id == 0 || c.engines != nil) {
			t.Errorf("engines of the old format: %+v", c)
		}
	})
}
