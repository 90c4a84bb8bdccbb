// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// How large an answer over HTTPS, and one pod in it, may be. An object in etcd
// has no more than 1.5 MiB, of which each byte may be six in JSON (\u003c): one
// pod must not cost the others.
const (
	maxBody  = 512 << 20
	maxValue = 16 << 20
)

var (
	errBody  = fmt.Errorf("larger than %d bytes", maxBody)
	errValue = fmt.Errorf("one value in it is larger than %d bytes", maxValue)
)

// stream reads a JSON document piece by piece. Pieces that are not what they
// should be are counted, and the rest goes on.
type stream struct {
	*json.Decoder
	body  io.Reader
	total int64 // bytes that the document may still have
	value int64 // bytes that may still be read for the current value
	bad   int   // pieces that are not what they should be
	first error // why the first of them is not
}

func newStream(body io.Reader) *stream {
	s := &stream{body: body, total: maxBody, value: maxValue}
	s.Decoder = json.NewDecoder(s)
	return s
}

// Read is for the decoder.
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

// object calls field for each field of the object that comes next; field takes
// its value from the stream. Null has none.
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

// array calls element for each element of the array that comes next.
func (s *stream) array(element func() error) error { return s.inside('[', element) }

func (s *stream) inside(open json.Delim, next func() error) error {
	s.value = maxValue
	t, err := s.Token()
	if err != nil || t == nil {
		return err
	}
	if t != open {
		return fmt.Errorf("no %v where one should be", open)
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

// take decodes the next value into v. It is false when v is not to be used; that
// a type in it is wrong is no error, but counted.
func (s *stream) take(v any) (bool, error) {
	err := s.Decode(v)
	if _, wrong := errors.AsType[*json.UnmarshalTypeError](err); wrong {
		s.spoilt(err)
		return false, nil
	}
	return err == nil, err
}

// spoilt counts a piece that cannot be used.
func (s *stream) spoilt(err error) {
	s.bad++
	if s.first == nil {
		s.first = err
	}
}

// skip leaves the next value out.
func (s *stream) skip() error { return s.Decode(new(ignored)) }

// end is the error of a document that does not end here, or has not listed what
// it should.
func (s *stream) end(listed bool) error {
	s.value = maxValue
	switch _, err := s.Token(); {
	case err == nil:
		return errors.New("something follows after its end")
	case !errors.Is(err, io.EOF):
		return err
	case !listed:
		return errors.New("it lists no pods")
	}
	return nil
}

// losses is the error of the pieces that could not be used, nil without any.
func (s *stream) losses() error {
	if s.bad == 0 {
		return nil
	}
	return fmt.Errorf("%d entries are not as they should be; the first: %s", s.bad, short(s.first.Error()))
}

// ignored is a JSON value that nobody wants.
type ignored struct{}

// UnmarshalJSON is for encoding/json.
func (*ignored) UnmarshalJSON([]byte) error { return nil }
