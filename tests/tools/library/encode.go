// SPDX-License-Identifier: Apache-2.0

// Package library encodes metric families with the library of Prometheus, for tests that compare.
package library

import (
	"bytes"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Encode returns families in a format. The options are OpenMetrics'.
func Encode(t testing.TB, families []*dto.MetricFamily, format expfmt.FormatType, options ...expfmt.EncoderOption) string {
	t.Helper()
	var out bytes.Buffer
	enc := expfmt.NewEncoder(&out, expfmt.NewFormat(format), options...)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	if c, ok := enc.(expfmt.Closer); ok {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}
