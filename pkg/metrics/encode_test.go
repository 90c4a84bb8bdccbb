// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// compareText compares the text formats with the library's.
func compareText(t *testing.T, families []exposition.Family) {
	t.Helper()
	page := exposition.NewPage(families, exposition.Forms{})
	for _, typ := range []expfmt.FormatType{expfmt.TypeTextPlain, expfmt.TypeOpenMetrics} {
		want := library.Encode(t, page.Proto(), typ)
		var e exposition.Encoder
		got, err := e.Encode(page, expfmt.NewFormat(typ), false)
		if err != nil || string(got) != want {
			t.Errorf("format %d: %v (-library +ours):\n%s", typ, err, cmp.Diff(want, string(got)))
		}
	}
}

func TestTextMatchesLibrary(t *testing.T) {
	for name := range nodes(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCollector(setup{Sources: nodes(t)[name], Compat: append(CompatSets(), Process)})
				defer c.Close() //nolint:errcheck // a source may be stuck
				compareText(t, c.now(t))
			})
		})
	}
	t.Run("much", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCollector(setup{Sources: big(20, 50)}) // the text fills several buffers
			defer c.Close()                                //nolint:errcheck // nothing to lose
			compareText(t, c.now(t))
		})
	})
}

// TestEncode checks that each format decodes to the families, with and without compression, and is compressed once per
// refresh.
func TestEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(setup{Sources: node(), Compat: CompatSets()})
		defer c.Close() //nolint:errcheck // nothing to lose
		for _, typ := range []expfmt.FormatType{
			expfmt.TypeTextPlain, expfmt.TypeOpenMetrics, expfmt.TypeProtoDelim, expfmt.TypeProtoText, expfmt.TypeProtoCompact,
		} {
			format := expfmt.NewFormat(typ)
			plain, err := c.Encode(format, false)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(library.Encode(t, mustGather(t, c), typ), string(plain)); d != "" {
				t.Errorf("%s:\n%s", format, d)
			}
			packed, err := c.Encode(format, true)
			if err != nil {
				t.Fatal(err)
			}
			r, err := gzip.NewReader(bytes.NewReader(packed))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s: not the same when unpacked: %v", format, err)
			}
			if again, _ := c.Encode(format, true); &again[0] != &packed[0] {
				t.Errorf("%s is compressed twice", format)
			}
		}
		before, _ := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), true)
		time.Sleep(time.Minute)
		if after, _ := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), true); &after[0] == &before[0] {
			t.Error("a body of a minute ago")
		}
	})
}
