// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/common/model"
)

const (
	// maxAnswer bounds the answer to a query. The answer for 10,000 ports has two megabytes.
	maxAnswer = 16 << 20
	// maxSeries bounds a series with the decoder's read-ahead, maxLabels the labels of a series.
	maxSeries = 64 << 10
	maxLabels = 64
)

var (
	errTooLarge      = fmt.Errorf("the answer has more than %d bytes, or a series of it more than %d", maxAnswer, maxSeries)
	errTooManyLabels = fmt.Errorf("a series has more than %d labels", maxLabels)
	errNoVector      = errors.New("the answer is no vector or matrix of a Prometheus")
)

// series is an element of a vector or matrix as Prometheus sends it. A native histogram has no value.
type series struct {
	Metric map[string]string  `json:"metric"`
	Value  *model.SamplePair  `json:"value"`
	Values []model.SamplePair `json:"values"`
}

// readAnswer reads the answer to a query and calls each with one series at a time, to save memory. The series is valid
// until each returns.
func readAnswer(from io.Reader, each func(*series) error) (warnings []string, err error) {
	body := &Body{From: from, Left: maxAnswer, TooLarge: errTooLarge}
	decoder := json.NewDecoder(body)
	var status, kind string
	seen := false
	data := func(key string) error {
		switch key {
		case "resultType":
			return decoder.Decode(&kind)
		case "result":
			seen = true
			return elements(decoder, body, kind, each)
		}
		return skip(decoder)
	}
	err = members(decoder, body, func(key string) error {
		switch key {
		case "status":
			return decoder.Decode(&status)
		case "warnings":
			return decoder.Decode(&warnings)
		case "data":
			return members(decoder, body, data)
		}
		return skip(decoder)
	})
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, other := errors.AsType[*json.UnmarshalTypeError](err)
	if syntax || other || errors.Is(err, io.EOF) || err == nil && (status != "success" || !isList(kind) || !seen) {
		err = errNoVector
	}
	return warnings, err
}

// members calls do with each key of an object, before its value.
func members(decoder *json.Decoder, body *Body, do func(key string) error) error {
	body.Part = maxSeries
	if err := begin(decoder, '{'); err != nil {
		return err
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		body.Part = maxSeries
		if err := do(fmt.Sprint(key)); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err
}

func elements(decoder *json.Decoder, body *Body, kind string, each func(*series) error) error {
	if kind != "" && !isList(kind) {
		return errNoVector
	}
	if err := begin(decoder, '['); err != nil {
		return err
	}
	one := series{Metric: map[string]string{}}
	for decoder.More() {
		clear(one.Metric)
		one.Value, one.Values = nil, one.Values[:0]
		if err := decoder.Decode(&one); err != nil {
			return err
		}
		if len(one.Metric) > maxLabels {
			return errTooManyLabels
		}
		if err := each(&one); err != nil {
			return err
		}
		body.Part = maxSeries
	}
	_, err := decoder.Token()
	return err
}

// isList reports whether an answer of a kind is a list of series.
func isList(kind string) bool { return kind == "vector" || kind == "matrix" }

func begin(decoder *json.Decoder, want json.Delim) error {
	if t, err := decoder.Token(); err != nil || t != want {
		return errors.Join(err, errNoVector)
	}
	return nil
}

func skip(decoder *json.Decoder) error {
	var value json.RawMessage
	return decoder.Decode(&value)
}

// Body is the body of an answer. It reads at most Left bytes in all, and Part bytes until Part is set again, which
// bounds a decoder's buffer for one element. Beyond a bound, Read returns TooLarge.
type Body struct {
	From       io.Reader
	Left, Part int
	TooLarge   error
}

func (b *Body) Read(p []byte) (int, error) {
	most := min(b.Left, b.Part)
	if most <= 0 {
		return 0, b.TooLarge
	}
	n, err := b.From.Read(p[:min(len(p), most)])
	b.Left, b.Part = b.Left-n, b.Part-n
	return n, err
}
