// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/model"
)

// randomPages makes pages of several blocks whose values change, and now and then their series.
type randomPages struct {
	*rand.Rand
	builder    *Builder
	metrics    []*Metric
	devices    int
	values     []uint64
	histograms []model.Histogram
}

func newRandomPages() *randomPages {
	p := &randomPages{Rand: rand.New(rand.NewPCG(1, 2)), builder: NewBuilder(nil), devices: 60, values: make([]uint64, 900)}
	p.histograms = make([]model.Histogram, len(p.values))
	for i := range 8 {
		typ := counter
		if i == 5 {
			typ = histogram
		}
		p.metrics = append(p.metrics, p.builder.Declare(fmt.Sprint("family_", i, "_total"), "A test.", typ, []string{"device"}, Detail{}))
	}
	return p
}

func (p *randomPages) next(forms Forms) *Page {
	for range p.IntN(3) {
		i := p.IntN(len(p.values))
		p.values[i] += p.Uint64N(1 << p.IntN(40))
		p.histograms[i].Count++
		p.histograms[i].Buckets[p.IntN(len(p.histograms[i].Buckets))]++
	}
	if p.IntN(10) == 0 {
		p.devices = 40 + p.IntN(60)
	}
	p.builder.Begin()
	for i, m := range p.metrics {
		if i == p.devices%12 { // a family that comes and goes
			continue
		}
		p.builder.Metric(m)
		since := p.builder.Since(time.UnixMilli(int64(p.values[0])))
		for d := range p.devices {
			at := i*p.devices + d
			if m.typ == histogram {
				h := p.histograms[at]
				since.Histogram(&h, nil, fmt.Sprint("mlx5_", d))
			} else {
				since.Share(float64(p.values[at]), nil, fmt.Sprint("mlx5_", d))
			}
		}
	}
	return NewPage(p.builder.End(), forms)
}

// TestPacked: after random changes, compressed pages have the text of pages that are not compressed.
func TestPacked(t *testing.T) {
	pages, kept := newRandomPages(), Encoder{}
	kind, forms := expfmt.TypeTextPlain, Forms{}
	for range 1000 {
		if pages.IntN(20) == 0 {
			kind = []expfmt.FormatType{expfmt.TypeTextPlain, expfmt.TypeOpenMetrics}[pages.IntN(2)]
			forms.CreatedLines = pages.IntN(2) == 0
		}
		page, format := pages.next(forms), expfmt.NewFormat(kind)
		checkPacked(t, &kept, page, format)
	}
}

// checkPacked compares a compressed page with the page that is not compressed.
func checkPacked(t *testing.T, kept *Encoder, page *Page, format expfmt.Format) {
	t.Helper()
	want, err := new(Encoder).Encode(page, format, false)
	if err != nil {
		t.Fatal(err)
	}
	body, err := kept.Encode(page, format, true)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r) // it checks the CRC and the length
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v: %d bytes, want %d", err, len(got), len(want))
	}
}

// TestPackedShrinks: a family whose last rows go ends anywhere in a block, also where a block begins.
func TestPackedShrinks(t *testing.T) {
	const most = 1000
	sets := make([]*LabelSet, most)
	for i := range sets {
		sets[i] = &LabelSet{text: fmt.Sprintf(`device="%064d"`, i)}
	}
	name, help := [2]string{"a", "b"}, "A test."
	page := func(rows int) *Page {
		families := make([]Family, 2)
		for n := range families {
			families[n] = Family{name: &name[n], help: &help, typ: gauge, rows: make([]row, rows)}
			for i := range families[n].rows {
				families[n].rows[i].labels = sets[i]
			}
		}
		return NewPage(families, Forms{})
	}
	for rows := 1; rows < most; rows++ {
		var kept Encoder
		for _, now := range []*Page{page(most), page(rows), page(most)} {
			checkPacked(t, &kept, now, expfmt.NewFormat(expfmt.TypeTextPlain))
		}
	}
}

// TestPackedKeeps: a value that changes costs the compression of its own block.
func TestPackedKeeps(t *testing.T) {
	page := func() []Family {
		return []Family{{name: new("a"), help: new("A."), typ: gauge, rows: make([]row, 3000)}}
	}
	first, second := page(), page()
	for i := range first[0].rows {
		set := &LabelSet{text: fmt.Sprintf(`device="%032d"`, i)}
		first[0].rows[i].labels, second[0].rows[i].labels = set, set
	}
	second[0].rows[2999].value = 1
	var p packed
	if err := p.write(&bytes.Buffer{}, &text{}, first); err != nil {
		t.Fatal(err)
	}
	for i := range p.blocks {
		p.blocks[i].length = -1
	}
	if err := p.write(&bytes.Buffer{}, &text{}, second); err != nil {
		t.Fatal(err)
	}
	for i, last := 0, len(p.blocks)-1; i <= last; i++ {
		if again := p.blocks[i].length >= 0; again != (i == last) || last < 5 {
			t.Errorf("block %d of %d was compressed again: %v", i, last+1, again)
		}
	}
}
