// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// resource is a large resource of a VPD: a tag, two bytes of length, and the data.
func resource(tag byte, data ...string) string {
	all := strings.Join(data, "")
	return string(binary.LittleEndian.AppendUint16([]byte{tag}, uint16(len(all)))) + all
}

// keyword is an entry of a VPD-R: two letters, a byte of length, and the value.
func keyword(name, value string) string { return name + string([]byte{byte(len(value))}) + value }

const (
	uuid        = "4c7c1f2e-7b39-ef11-8000-e89e49a1b2c4"
	another     = "00000000-7b39-ef11-8000-e89e49a1b2c4"
	identifier  = 0x82
	readWrite   = 0x91
	smallFiller = "\x03abc" // a small resource of three bytes
)

// card is a VPD as HCAs have it: the name, the read-only part, and the end.
func card(v3 string) string {
	return resource(identifier, "NVIDIA ConnectX-8") +
		resource(readOnlyVPD, keyword("PN", "900-9X81Q"), keyword("V2", "900-9X81Q"), keyword("SN", "MT2500"), keyword("V3", v3),
			keyword("RV", "\x5a\x00")) +
		string(rune(endSmall))
}

// TestParseUUID has VPDs in the form of the PCI specification, whole, cut off at each byte, and hostile.
func TestParseUUID(t *testing.T) {
	whole := card(uuid)
	for name, c := range map[string]struct{ vpd, want string }{
		"a card":                          {whole, uuid},
		"small resources before":          {smallFiller + whole, uuid},
		"large end tag":                   {resource(readOnlyVPD, keyword("V3", uuid)) + "\x79", uuid},
		"no end tag":                      {resource(readOnlyVPD, keyword("V3", uuid)), uuid},
		"behind the end":                  {string(rune(endSmall)) + whole, ""},
		"in the writable part":            {resource(readWrite, keyword("V3", uuid)), ""},
		"in the name":                     {resource(identifier, keyword("V3", uuid)), ""},
		"another keyword":                 {resource(readOnlyVPD, keyword("VU", uuid)), ""},
		"in a value":                      {resource(readOnlyVPD, keyword("VA", "V3\x04abcd")), ""},
		"twice":                           {resource(readOnlyVPD, keyword("V3", another), keyword("V3", uuid)), uuid},
		"value beyond its part":           {resource(readOnlyVPD, "V3\xff"+uuid) + whole, uuid},
		"part beyond the end":             {"\x90\xff\xff" + keyword("V3", uuid), ""},
		"a part without its length":       {"\x90\x04", ""},
		"a small resource beyond the end": {"\x07", ""},
		"empty":                           {"", ""},
		"empty value":                     {card(""), ""},
		"control characters":              {card(uuid + "\n"), ""},
		"not ASCII":                       {card("\xff\xfe"), ""},
		"too long":                        {card(strings.Repeat("a", maxUUID+1)), ""},
		"an erased memory":                {strings.Repeat("\xff", 256), ""},
		"zeros without end":               {strings.Repeat("\x00", maxVPD), ""},
		"empty parts without end":         {strings.Repeat("\x90\x00\x00", maxVPD/3), ""},
	} {
		if got := parseUUID([]byte(c.vpd)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for n := range whole {
		want := ""
		if n >= strings.LastIndex(whole, string(rune(endSmall))) { // the read-only part is whole
			want = uuid
		}
		if got := parseUUID([]byte(whole[:n])); got != want {
			t.Errorf("the first %d bytes: %q, want %q", n, got, want)
		}
	}
}

func FuzzVPD(f *testing.F) {
	f.Add([]byte(card(uuid)))
	f.Add([]byte(smallFiller + resource(readOnlyVPD, "V3\xff"+uuid)))
	f.Add([]byte("\x90\xff\xffV3\x02ab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		switch got := parseUUID(b); {
		case got == "":
		case len(got) > maxUUID || strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' }):
			t.Errorf("%q", got)
		case !bytes.Contains(b, []byte(keyword("V3", got))):
			t.Errorf("%q is no value of V3", got)
		}
	})
}

const (
	directAt = "pci0002:00/0002:00:00.0/0002:03:00.0"
	hcaAt    = "pci0000:15/0000:15:01.0/0000:16:00.0"
)

// cards adds a Data Direct function and an HCA with these files.
func (tr tree) cards(direct, hca map[string]string) {
	tr.add(directAt, with(direct, "class", "0x088000\n", "vendor", "0x15b3\n", "device", "0x2100\n"))
	tr.add(hcaAt, with(hca, "class", "0x020700\n", "vendor", "0x15b3\n", "device", "0x1023\n"))
	tr.bind("0000:16:00.0", "mlx5_core")
}

// vpdsOf returns the VPDs of the HCA and of the Data Direct function.
func vpdsOf(t *testing.T, s *Source) [2]model.VPD {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil || len(snap.PCI) < 2 {
		t.Fatalf("%+v %v", snap.PCI, err)
	}
	return [2]model.VPD{snap.PCI[0].VPD, snap.PCI[len(snap.PCI)-1].VPD}
}

func sourceOf(t *testing.T, tr tree, wait time.Duration) *Source {
	t.Helper()
	s, err := New(Options{Sysfs: tr.root, Wait: wait})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestVPD: which functions have their VPD read, once, and why there is no UUID.
func TestVPD(t *testing.T) {
	tr := newTree(t)
	tr.cards(map[string]string{"vpd": card(uuid)}, map[string]string{"vpd": card("")})
	tr.add("pci0000:20/0000:20:01.0/0000:21:00.0", map[string]string{"class": "0x020000\n", "vpd": card(another)}) // of another vendor
	tr.add("pci0000:20/0000:20:01.0/0000:22:00.0", map[string]string{"class": "0x030200\n", "vpd": card(another)})
	s := sourceOf(t, tr, time.Minute)
	want := [2]model.VPD{{Missing: errNoUUID.Error()}, {UUID: uuid}}
	if got := vpdsOf(t, s); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for _, at := range []string{directAt, hcaAt} { // what was read is not read again
		if err := os.WriteFile(filepath.Join(tr.root, "devices", at, "vpd"), []byte(card(another)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := vpdsOf(t, s); got != want {
		t.Errorf("the second round: %+v, want %+v", got, want)
	}
	snap, err := s.Read(t.Context())
	if err != nil || len(snap.PCI) != 4 || snap.PCI[1].VPD != (model.VPD{}) || snap.PCI[2].VPD != (model.VPD{}) {
		t.Errorf("VPDs of others: %+v %v", snap.PCI, err)
	}
	if len(s.vpds) != 2 {
		t.Errorf("%d VPDs are remembered", len(s.vpds))
	}
	if err := os.Remove(filepath.Join(tr.root, "bus/pci/devices/0002:03:00.0")); err != nil { // no Data Direct: no VPD is needed
		t.Fatal(err)
	}
	if snap, err = s.Read(t.Context()); err != nil || snap.PCI[0].VPD != (model.VPD{}) || len(s.vpds) != 0 {
		t.Errorf("without Data Direct: %+v %v", snap.PCI, err)
	}
}

// TestVPDFailures: a failed read is repeated, a suspended function is left alone, and what is too large is read in part.
func TestVPDFailures(t *testing.T) {
	tr := newTree(t)
	tr.cards(map[string]string{"vpd/is a directory": ""}, map[string]string{"vpd": card(uuid), "power/runtime_status": "suspended\n"})
	s := sourceOf(t, tr, time.Minute)
	if got, want := vpdsOf(t, s), ([2]model.VPD{{Missing: errSuspended.Error()}, {Missing: "reading its VPD: is a directory"}}); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	direct := filepath.Join(tr.root, "devices", directAt, "vpd")
	if err := os.RemoveAll(direct); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat(smallFiller, maxVPD/len(smallFiller)) + card(uuid)
	if err := os.WriteFile(direct, []byte(large), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tr.root, "devices", hcaAt, "power/runtime_status"), []byte("active\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := vpdsOf(t, s), ([2]model.VPD{{UUID: uuid}, {Missing: errNoUUID.Error()}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestVPDHangs has a VPD that does not answer: Read returns nevertheless, and once it answers, its UUID is known. The FAKE is a FIFO, at
// which open hangs.
func TestVPDHangs(t *testing.T) {
	tr := newTree(t)
	tr.cards(map[string]string{}, map[string]string{"vpd": card(another)})
	fifo := filepath.Join(tr.root, "devices", directAt, "vpd")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := sourceOf(t, tr, time.Millisecond)
	for range 2 {
		if got, want := vpdsOf(t, s)[1], (model.VPD{Missing: errUnread.Error()}); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
	if err := os.WriteFile(fifo, []byte(card(uuid)), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); vpdsOf(t, s) != [2]model.VPD{{UUID: another}, {UUID: uuid}}; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", vpdsOf(t, s))
		}
	}
}
