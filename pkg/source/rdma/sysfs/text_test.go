// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

func TestParseCounter(t *testing.T) {
	for in, want := range map[string]string{
		"0\n": "0 true", "17": "17 true", " 5 \n": "5 true",
		"18446744073709551615\n": fmt.Sprint(uint64(math.MaxUint64), " true"),
		"N/A (no PMA)\n":         "0 false",
	} {
		v, ok, err := parseCounter([]byte(in))
		if got := fmt.Sprint(v, " ", ok); got != want || err != nil {
			t.Errorf("%q: %s %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "\n", "-1", "+1", "1 2", "0x10", "1e3", "1\x00", "18446744073709551616", strings.Repeat("0", 65),
	} {
		if v, ok, err := parseCounter([]byte(in)); err == nil || ok {
			t.Errorf("%q gives %d", in, v)
		}
	}
}

func TestParseRate(t *testing.T) {
	for in, want := range map[string]string{
		"200 Gb/sec (4X HDR)":   "200000000000 4 HDR",
		"2.5 Gb/sec (1X SDR)":   "2500000000 1 SDR",
		"10 Gb/sec (4X)":        "10000000000 4 ",
		"10 Gb/sec (1X FDR10)":  "10000000000 1 FDR10",
		"800 Gb/sec (4X XDR)":   "800000000000 4 XDR",
		"1200 Gb/sec (12X NDR)": "1200000000000 12 NDR",
	} {
		bits, width, speed, ok := parseRate(in)
		if got := fmt.Sprintf("%.0f %d %s", bits, width, speed); got != want || !ok {
			t.Errorf("%q: %s %v, want %s", in, got, ok, want)
		}
	}
	for _, in := range []string{
		"", "Gb/sec", "x Gb/sec (4X HDR)", "200 Gb/sec (4X HDR", "200 Gb/sec (X HDR)", "-1 Gb/sec (4X)", "NaN Gb/sec (4X)",
	} {
		if _, _, _, ok := parseRate(in); ok {
			t.Errorf("%q passes", in)
		}
	}
}

func TestParseSmall(t *testing.T) {
	for in, want := range map[string]string{
		"4: ACTIVE": "ACTIVE", "5: LinkUp": "LinkUp", "7: Phy Test": "Phy Test", "ACTIVE": "", "x: y": "", "": "",
	} {
		if got := parseNumbered(in); got != want {
			t.Errorf("parseNumbered(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"fe80:0000:0000:0000:a088:c203:00ff:0001": "0xa088c20300ff0001",
		"0000:0000:0000:0000:0000:0000:0000:0000": "",
		"fe80::1": "",
		"fe80:0000:0000:0000:00:11:22:33:4:5:6:7": "",
		"fe80:0000:0000:0000:a088:c203:00ff:000g": "",
	} {
		if got := parsePortGUID(in); got != want {
			t.Errorf("parsePortGUID(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"../../devices/pci0000:15/0000:18:00.0/infiniband/mlx5_0":                  "0000:18:00.0",
		"../../devices/pci0000:00/0000:00:01.0/10000:e1:00.7/infiniband/mlx5_0":    "10000:e1:00.7",
		"../../devices/pci0000:15/0000:18:00.0/mlx5_core.sf.4/infiniband/mlx5_sf4": "0000:18:00.0",
		"../../devices/virtual/infiniband/rxe0":                                    "",
	} {
		if got := PCIAddress(in); got != want {
			t.Errorf("pciAddress(%q) = %q, want %q", in, got, want)
		}
		if got := isSubfunction(in); got != strings.Contains(in, "mlx5_sf4") {
			t.Errorf("isSubfunction(%q) = %v", in, got)
		}
	}
}

func TestParseGUID(t *testing.T) {
	for in, want := range map[string]string{
		"a088:c203:0000:0001":       "0xa088c20300000001",
		"A0:88:C2:03:00:00:01:02":   "0xa088c20300000102",
		"0:11:22:33:44:55:1:0":      "0x0011223344550100",
		"00:00:00:00:00:00:00:00":   "",
		"":                          "",
		"a088:c203:0000":            "",
		"a088:c203:0000:10001":      "",
		"a088:c203:0000:000g":       "",
		"+088:c203:0000:0001":       "",
		"100:11:22:33:44:55:66:77":  "",
		"00:11:22:33:44:55:66:77:8": "",
	} {
		if got := parseGUID(in); got != want {
			t.Errorf("parseGUID(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzSysfs: any content parses to a value or to nothing, or is rejected.
func FuzzSysfs(f *testing.F) {
	for _, s := range []string{
		"12\n", "N/A (no PMA)\n", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "10 Gb/sec (1X FDR10)",
		"fe80:0000:0000:0000:a088:c203:00ff:0001\n", "../../devices/pci0000:15/0000:18:00.0/infiniband/mlx5_0",
		"00:11:22:33:44:55:66:77\n", "\xb1", "é",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, ok, err := parseCounter(b); ok {
			if want, e := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); e != nil || want != v || err != nil {
				t.Errorf("%q is %d, not %d (%v, %v)", b, want, v, e, err)
			}
		}
		line := ParseLine(b)
		if strings.ContainsFunc(line, unicode.IsControl) || len(line) > 256 {
			t.Errorf("%q is not a line", line)
		}
		_ = parseNumbered(line)
		bits, width, _, ok := parseRate(line)
		if ok && (bits < 0 || bits > 1e15 || math.IsNaN(bits) || width < 0 || width > 255) {
			t.Errorf("%q is %v bits, %d lanes", line, bits, width)
		}
		if g := parsePortGUID(line); g != "" && len(g) != 18 {
			t.Errorf("%q gives the GUID %q", line, g)
		}
		if g := parseGUID(line); g != "" && len(g) != 18 {
			t.Errorf("%q gives the GUID %q", line, g)
		}
		_ = PCIAddress(string(b))
		for e := range boundedfile.Entries(b) {
			if len(e.Name) > len(b) {
				t.Error("a name is longer than its directory")
			}
		}
	})
}

func FuzzGID(f *testing.F) {
	f.Add("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "Ethernet", "CA")
	f.Add("fe80:0000:0000:0000:a088:c203:0000:0000", "IB/RoCE v1", "InfiniBand", "CA")
	f.Add(hca.EmptyGID, "", "", "")
	f.Fuzz(func(t *testing.T, gid, text, linkLayer, nodeType string) {
		if a := parseGID(gid); a.IsValid() && (!a.Is6() || a.Zone() != "" || a.IsUnspecified()) {
			t.Errorf("%q: %v", gid, a)
		}
		switch kind := gidType(text, linkLayer, nodeType); kind {
		case "", model.GIDInfiniBand, model.GIDRoCEv1, model.GIDRoCEv2, model.GIDOther:
		default:
			t.Errorf("%q, %q, %q: %q", text, linkLayer, nodeType, kind)
		}
	})
}

func FuzzPKey(f *testing.F) {
	for _, s := range []string{"0xffff", "0x0000", "0x8001", "ffff", "0x10000", "0x+fff", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, ok := parsePKey(s)
		if !ok {
			return
		}
		v, err := strconv.ParseUint(s, 0, 16)
		if err != nil || uint16(v)&0x7fff != k.Partition || v>>15 != map[bool]uint64{true: 1}[k.Full] {
			t.Errorf("%q: %+v", s, k)
		}
	})
}
