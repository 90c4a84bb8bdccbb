// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"bytes"
	"encoding/json"
)

// maxItems is how many elements of a list within an element are read.
const maxItems = 1024

// list is a list in the answer of a sensor, which may be hostile: a megabyte of empty objects would take a hundred megabytes.
type list[T any] struct {
	do    func(*T) error // is called with each element; nil: the first are kept
	items []T
	known bool // there was a list
}

// UnmarshalJSON decodes one element after the other.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	switch t, err := decoder.Token(); {
	case err != nil:
		return err
	case t == nil: // null
		return nil
	case t != json.Delim('['):
		return errNotSensor
	}
	l.known = true
	for decoder.More() {
		var item T
		if err := decoder.Decode(&item); err != nil {
			return err
		}
		switch {
		case l.do != nil:
			if err := l.do(&item); err != nil {
				return err
			}
		case len(l.items) == maxItems:
			return errTooLarge
		default:
			l.items = append(l.items, item)
		}
	}
	return nil
}
