// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestParse has formats of several drivers, written from their source: amdgpu_fdinfo.c, i915_drm_client.c,
// xe_drm_client.c.
func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Client
		ok   bool
	}{
		"amdgpu, Linux 6.1": {
			text: "pasid:\t32770\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t57\ndrm-memory-vram:\t1024 KiB\n" +
				"drm-memory-gtt: \t16 KiB\ndrm-memory-cpu: \t0 KiB\ndrm-engine-gfx:\t1500 ns\ndrm-engine-enc_1:\t7 ns\n",
			want: Client{
				Driver: "amdgpu", PCIAddress: "0000:03:00.0", ID: 57, Memory: map[string]uint64{"vram": 1 << 20, "gtt": 16 << 10, "cpu": 0},
				Engines: map[string]Engine{"gfx": {Busy: 1500}, "enc_1": {Busy: 7}},
			},
			ok: true,
		},
		"bad lines after good lines": {
			text: "drm-driver:\txe\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t9\ndrm-driver:\ndrm-pdev:\tx\ndrm-client-id:\t-1\n",
			want: Client{Driver: "xe", PCIAddress: "0000:03:00.0", ID: 9, Engines: map[string]Engine{}}, ok: true,
		},
		"i915": {
			text: "drm-driver:\ti915\ndrm-client-id:\t7\ndrm-pdev:\t0000:00:02.0\ndrm-total-system0:\t0\ndrm-resident-system0:\t4 MiB\n" +
				"drm-resident-stolen-system0:\t0\ndrm-engine-render:\t25662044495 ns\ndrm-engine-copy:\t0 ns\n" +
				"drm-engine-video:\t0 ns\ndrm-engine-capacity-video:\t2\n",
			want: Client{
				Driver: "i915", PCIAddress: "0000:00:02.0", ID: 7, Memory: map[string]uint64{"system0": 4 << 20, "stolen-system0": 0},
				Engines: map[string]Engine{"render": {Busy: 25662044495}, "copy": {}, "video": {Capacity: 2}},
			},
			ok: true,
		},
		"xe, which reports cycles": {
			text: "drm-driver:\txe\ndrm-client-id:\t9\ndrm-pdev:\t0000:03:00.0\ndrm-resident-vram0:\t83886080 KiB\ndrm-cycles-rcs:\t28257900\n" +
				"drm-total-cycles-rcs:\t7655183225\n",
			want: Client{
				Driver: "xe", PCIAddress: "0000:03:00.0", ID: 9, Memory: map[string]uint64{"vram0": 80 << 30},
				Engines: map[string]Engine{"rcs": {Cycles: 28257900, Clock: 7655183225}},
			},
			ok: true,
		},
		"not on PCI": {
			text: "drm-driver:\tpanfrost\ndrm-client-id:\t3\ndrm-engine-fragment:\t1 ns\n",
			want: Client{Driver: "panfrost", ID: 3, Engines: map[string]Engine{"fragment": {Busy: 1}}}, ok: true,
		},
		"both keys of memory": {
			text: "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-resident-vram:\t0\ndrm-memory-vram:\t8 MiB\ndrm-resident-gtt:\tx\ndrm-memory-gtt:\t1\n",
			want: Client{Driver: "amdgpu", ID: 1, Memory: map[string]uint64{"vram": 0, "gtt": 1}, Engines: map[string]Engine{}}, ok: true,
		},
		"impossible values": {
			text: "drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t03:00.0\ndrm-memory-vram:\t99999999999999999 MiB\n" +
				"drm-engine-gfx:\t18446744073709551615 ns\ndrm-engine-dec:\t-5 ns\ndrm-engine-enc:\t1.5 %\ndrm-engine-\x1b[2J:\t5 ns\n" +
				"drm-memory-gtt:\t281474976710657\ndrm-engine-capacity-gfx:\t1025\n" +
				"drm-resident-\x1b[2J:\t5\ndrm-engine-capacity-jpeg:\t0\ndrm-engine-" + strings.Repeat("x", 33) + ":\t5 ns\n",
			want: Client{Driver: "amdgpu", ID: 1, Engines: map[string]Engine{"jpeg": {}}}, ok: true,
		},
		"no id":      {text: "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\n"},
		"no driver":  {text: "drm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\n"},
		"an eventfd": {text: "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\neventfd-count:                0\neventfd-id: 2\n"},
	} {
		got, ok := ParseFdinfo([]byte(c.text))
		if ok != c.ok || !reflect.DeepEqual(got, c.want) && c.ok {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, ok, c.want, c.ok)
		}
	}
}

func FuzzParseFdinfo(f *testing.F) {
	f.Add([]byte("drm-driver:\tamdgpu\ndrm-client-id:\t9\ndrm-pdev:\t0000:c1:00.0\ndrm-resident-vram:\t3145728 KiB\n" +
		"drm-memory-gtt:\t1 MiB\ndrm-engine-compute:\t1000000000 ns\ndrm-engine-capacity-compute:\t8\n"))
	many := "drm-driver:x\ndrm-client-id:1\n"
	for i := range maxKeys + 1 {
		many += fmt.Sprintf("drm-engine-%d: 1 ns\ndrm-memory-%d: 1 KiB\n", i, i)
	}
	f.Add([]byte(many))
	f.Add([]byte("drm-driver:x\ndrm-client-id:1\n" + strings.Repeat("drm-engine-a:1 ns\ndrm-memory-b:1\n", 100)))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, ok := ParseFdinfo(text)
		if !ok {
			return
		}
		if c.Driver == "" || c.PCIAddress != "" && !model.IsPCIAddress(c.PCIAddress) || len(c.Memory) > maxKeys || len(c.Engines) > maxKeys {
			t.Errorf("%+v", c)
		}
		for name, size := range c.Memory {
			if !isName(name) || size > maxMemory {
				t.Errorf("%q: %d", name, size)
			}
		}
		for name, e := range c.Engines {
			if !isName(name) || e.Busy > maxCounter || e.Cycles > maxCounter || e.Clock > maxCounter || e.Capacity > maxCapacity {
				t.Errorf("%q: %+v", name, e)
			}
		}
	})
}
