// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
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
	end         = "\x78"
	smallFiller = "\x03abc" // a small resource of three bytes
)

// card is a VPD as HCAs have it: the name, the read-only part, and the end.
func card(v3 string) string {
	return resource(identifier, "NVIDIA ConnectX-8") +
		resource(readOnlyVPD, keyword("PN", "900-9X81Q"), keyword("V2", "900-9X81Q"), keyword("SN", "MT2500"), keyword("V3", v3),
			keyword("RV", "\x5a\x00")) +
		end
}

// TestParseUUID has VPDs in the form of the PCI specification, whole, cut off at each byte, and hostile.
func TestParseUUID(t *testing.T) {
	whole := card(uuid)
	for name, c := range map[string]struct {
		vpd, want string
		err       error
	}{
		"a card":                          {whole, uuid, nil},
		"small resources before":          {smallFiller + whole, uuid, nil},
		"large end tag":                   {resource(readOnlyVPD, keyword("V3", uuid)) + "\x79", uuid, nil},
		"no end tag":                      {resource(readOnlyVPD, keyword("V3", uuid)), uuid, nil},
		"behind the end":                  {end + whole, "", errNoUUID},
		"in the writable part":            {resource(readWrite, keyword("V3", uuid)) + end, "", errNoUUID},
		"in the name":                     {resource(identifier, keyword("V3", uuid)) + end, "", errNoUUID},
		"another keyword":                 {resource(readOnlyVPD, keyword("VU", uuid)) + end, "", errNoUUID},
		"another keyword, no end tag":     {resource(readOnlyVPD, keyword("VU", uuid)), "", errNoEnd},
		"in a value":                      {resource(readOnlyVPD, keyword("VA", "V3\x04abcd")) + end, "", errNoUUID},
		"twice":                           {resource(readOnlyVPD, keyword("V3", another), keyword("V3", uuid)), uuid, nil},
		"in two parts":                    {resource(readOnlyVPD, keyword("V3", another)) + whole, uuid, nil},
		"value beyond its part":           {resource(readOnlyVPD, "V3\xff"+uuid) + whole, uuid, nil},
		"part beyond the end":             {"\x90\xff\xff" + keyword("V3", uuid), "", errNoEnd},
		"a part without its length":       {"\x90\x04", "", errNoEnd},
		"a small resource beyond the end": {"\x07", "", errNoEnd},
		"empty":                           {"", "", errNoEnd},
		"only an end":                     {end, "", errNoUUID},
		"empty value":                     {card(""), "", errNoUUID},
		"padded with blanks":              {card(uuid + "  "), uuid, nil},
		"padded with zeros":               {card(uuid + "\x00\x00"), uuid, nil},
		"nothing but padding":             {card(" \x00"), "", errNoUUID},
		"control characters":              {card(uuid + "\n"), "", errBadUUID},
		"a blank within":                  {card("a b"), "", errBadUUID},
		"not ASCII":                       {card("\xff\xfe"), "", errBadUUID},
		"too long":                        {card(strings.Repeat("a", maxUUID+1)), "", errBadUUID},
		"an erased memory":                {strings.Repeat("\xff", 256), "", errNoEnd},
		"zeros without end":               {strings.Repeat("\x00", maxVPD), "", errNoEnd},
		"empty parts without end":         {strings.Repeat("\x90\x00\x00", maxVPD/3), "", errNoEnd},
	} {
		if got, err := parseUUID([]byte(c.vpd)); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q %v, want %q %v", name, got, err, c.want, c.err)
		}
	}
	for n := range whole {
		want, wantErr := "", errNoEnd
		if n >= strings.LastIndex(whole, end) { // the read-only part is whole
			want, wantErr = uuid, nil
		}
		if got, err := parseUUID([]byte(whole[:n])); got != want || !errors.Is(err, wantErr) {
			t.Errorf("the first %d bytes: %q %v, want %q %v", n, got, err, want, wantErr)
		}
	}
}

func FuzzVPD(f *testing.F) {
	f.Add([]byte(card(uuid)))
	f.Add([]byte(smallFiller + resource(readOnlyVPD, "V3\xff"+uuid)))
	f.Add([]byte("\x90\xff\xffV3\x02ab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		switch got, err := parseUUID(b); {
		case (got == "") != (err != nil):
			t.Errorf("%q %v", got, err)
		case got == "":
		case len(got) > maxUUID || strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' }):
			t.Errorf("%q", got)
		case !bytes.Contains(b, []byte(got)):
			t.Errorf("%q is not in the VPD", got)
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
	tr.bind("0002:03:00.0", "mlx5_ib")
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
	if err := os.Remove(filepath.Join(tr.root, "devices", directAt, "driver")); err != nil { // no Data Direct in use: no VPD is needed
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
	if got, want := vpdsOf(t, s), ([2]model.VPD{{UUID: uuid}, {Missing: errNoEnd.Error()}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := os.WriteFile(direct, []byte(card(another)), 0o644); err != nil { // what ended without its end tag is read again
		t.Fatal(err)
	}
	if got, want := vpdsOf(t, s), ([2]model.VPD{{UUID: uuid}, {UUID: another}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// lateContext is done at the moment at which a read returns: a wait for both may see either of them.
type lateContext struct {
	context.Context
	answer chan struct{}
	read   *vpdRead
}

func (c lateContext) Done() <-chan struct{} {
	close(c.answer)
	for !c.read.pending.Returned() {
		time.Sleep(time.Microsecond)
	}
	return c.Context.Done()
}

// TestVPDLate: a VPD that comes when the time is up is known.
func TestVPDLate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		var calls hang.Group[int, result]
		answer, r := make(chan struct{}), &vpdRead{}
		r.pending = calls.Start(t.Context(), 0, time.Minute, func() (result, error) { <-answer; return result{uuid: uuid}, nil })
		r.end(lateContext{ctx, answer, r})
		if !r.done || r.vpd.UUID != uuid {
			t.Fatalf("%+v", r)
		}
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
