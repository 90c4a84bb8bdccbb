// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/common/expfmt"
)

// encoder turns families into bodies. Its buffers are kept, so bodies are
// encoded one after another; sending them is not its business.
type encoder struct {
	mu     sync.Mutex
	buffer []byte
	gzip   *gzip.Writer
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
	if err := e.encode(r, format); err != nil {
		return nil, fmt.Errorf("encode metrics: %w", err)
	}
	if !compress {
		return slices.Clone(e.buffer), nil
	}
	body, err := e.compress()
	if err != nil {
		return nil, fmt.Errorf("compress metrics: %w", err)
	}
	if r.bodies == nil {
		r.bodies = bodies{}
	}
	r.bodies[format.FormatType()] = body
	return body, nil
}

// encode fills the buffer.
func (e *encoder) encode(r *refresh, format expfmt.Format) error {
	switch format.FormatType() {
	case expfmt.TypeTextPlain:
		e.buffer = appendText(e.buffer[:0], r.families, plainText)
		return nil
	case expfmt.TypeOpenMetrics:
		e.buffer = appendText(e.buffer[:0], r.families, openMetrics)
		return nil
	}
	out := bytes.NewBuffer(e.buffer[:0])
	enc := expfmt.NewEncoder(out, format)
	for _, f := range r.proto() {
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
	e.buffer = out.Bytes()
	return nil
}

// compress returns the buffer's content compressed, fast rather than small.
func (e *encoder) compress() ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(e.buffer) / 6)
	if e.gzip == nil {
		e.gzip, _ = gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is valid
	} else {
		e.gzip.Reset(&out)
	}
	if _, err := e.gzip.Write(e.buffer); err != nil {
		return nil, err
	}
	if err := e.gzip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
