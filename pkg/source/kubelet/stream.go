// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Size limits of an answer over HTTPS, and of a pod in it. An object in etcd has at most 1.5 MiB, and each byte may
// become six in JSON (\u003c). A large pod must not drop the others.
const (
	maxBody  = 512 << 20
	maxValue = 16 << 20
)

var (
	errBody  = fmt.Errorf("larger than %d bytes", maxBody)
	errValue = fmt.Errorf("one value in it is larger than %d bytes", maxValue)
)

// stream decodes a JSON document value by value. Invalid values are counted and skipped.
type stream struct {
	*json.Decoder
	body  io.Reader
	total int64 // bytes left for the document
	value int64 // bytes left for the current value
	bad   int   // number of invalid values
	first error // error of the first invalid value
}

func newStream(body io.Reader) *stream {
	s := &stream{body: body, total: maxBody, value: maxValue}
	s.Decoder = json.NewDecoder(s)
	return s
}

// Read implements io.Reader for the decoder.
func (s *stream) Read(p []byte) (int, error) {
	switch {
	case s.total <= 0:
		return 0, errBody
	case s.value <= 0:
		return 0, errValue
	}
	n, err := s.body.Read(p[:min(int64(len(p)), s.total, s.value)])
	s.total -= int64(n)
	s.value -= int64(n)
	return n, err
}

// object calls field for each field of the next object; field reads its value from the stream. Null has no fields.
func (s *stream) object(field func(name string) error) error {
	return s.inside('{', func() error {
		name, err := s.Token()
		if err != nil {
			return err
		}
		text, _ := name.(string)
		return field(text)
	})
}

func (s *stream) array(element func() error) error { return s.inside('[', element) }

func (s *stream) inside(open json.Delim, next func() error) error {
	s.value = maxValue
	t, err := s.Token()
	if err != nil || t == nil {
		return err
	}
	if t != open {
		return fmt.Errorf("no %v where one is expected", open)
	}
	for s.More() {
		s.value = maxValue
		if err := next(); err != nil {
			return err
		}
	}
	_, err = s.Token()
	return err
}

// take decodes the next value into v. It returns false if v is invalid; a wrong type in it is counted and is not an
// error.
func (s *stream) take(v any) (bool, error) {
	err := s.Decode(v)
	if _, wrong := errors.AsType[*json.UnmarshalTypeError](err); wrong {
		s.invalid(err)
		return false, nil
	}
	return err == nil, err
}

func (s *stream) invalid(err error) {
	s.bad++
	if s.first == nil {
		s.first = err
	}
}

func (s *stream) skip() error { return s.Decode(new(ignored)) }

// result returns f if the document was decoded without err, ends here, and has a list. Its error reports invalid
// values.
func (s *stream) result(f *facts, listed bool, err error) (*facts, error) {
	if err != nil {
		return nil, err
	}
	s.value = maxValue
	switch _, err := s.Token(); {
	case err == nil:
		return nil, errors.New("something follows after its end")
	case !errors.Is(err, io.EOF):
		return nil, err
	case !listed:
		return nil, errors.New("it lists no pods")
	case s.bad > 0:
		return f, fmt.Errorf("%d entries are invalid; the first: %s", s.bad, short(s.first.Error()))
	}
	return f, nil
}

type ignored struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (*ignored) UnmarshalJSON([]byte) error { return nil }
