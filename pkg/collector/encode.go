// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"

	"github.com/prometheus/common/expfmt"
)

// encoder turns families into bodies. Its buffers are kept, so bodies are
// encoded one after another; sending them is not its business.
type encoder struct {
	mu   sync.Mutex
	text text
	gzip *gzip.Writer
	size int // of the last body that was not compressed
}

// bodies are the compressed bodies of a refresh by format: the second of two
// scrapers gets what the first one got. They are small, and not many.
type bodies map[expfmt.FormatType][]byte

// Encode returns the metrics of now in a format that expfmt negotiated,
// compressed by gzip if so wished. The caller must not change them.
func (c *Collector) Encode(format expfmt.Format, compress bool) ([]byte, error) {
	r := c.now()
	e := &c.encoder
	e.mu.Lock()
	defer e.mu.Unlock()
	if body := r.bodies[format.FormatType()]; compress && body != nil {
		return body, nil
	}
	var out bytes.Buffer
	if !compress {
		out.Grow(e.size)
		err := e.encode(&out, r, format)
		e.size = out.Len()
		return out.Bytes(), err
	}
	if e.gzip == nil {
		e.gzip, _ = gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is valid
	} else {
		e.gzip.Reset(&out)
	}
	if err := e.encode(e.gzip, r, format); err != nil {
		return nil, err
	}
	if err := e.gzip.Close(); err != nil {
		return nil, fmt.Errorf("compress metrics: %w", err)
	}
	if r.bodies == nil {
		r.bodies = bodies{}
	}
	r.bodies[format.FormatType()] = out.Bytes()
	return out.Bytes(), nil
}

func (e *encoder) encode(out io.Writer, r *refresh, format expfmt.Format) error {
	e.text.out = out
	switch format.FormatType() {
	case expfmt.TypeTextPlain:
		e.text.dialect = plainText
		return e.text.write(r.families)
	case expfmt.TypeOpenMetrics:
		e.text.dialect = openMetrics
		return e.text.write(r.families)
	}
	enc := expfmt.NewEncoder(out, format)
	for _, f := range r.proto() {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("encode %s: %w", f.GetName(), err)
		}
	}
	return nil
}
