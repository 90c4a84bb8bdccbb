// SPDX-License-Identifier: Apache-2.0

package attribution

// key identifies a share by numbers, which hash faster than strings.
type key struct {
	owner  int
	device int32
	what   int32 // object type, memory or class
}

// shareTable is a list of shares with an index.
type shareTable[S any] struct {
	rows  []S
	index map[key]int
	names map[string]int32
}

func newTable[S any](size int) *shareTable[S] {
	return &shareTable[S]{rows: make([]S, 0, size), index: make(map[key]int, size), names: map[string]int32{}}
}

func (t *shareTable[S]) key(owner int, device, what string) key {
	return key{owner: owner, device: t.number(device), what: t.number(what)}
}

func (t *shareTable[S]) number(name string) int32 {
	if name == "" {
		return 0
	}
	n, ok := t.names[name]
	if !ok {
		n = int32(len(t.names) + 1)
		t.names[name] = n
	}
	return n
}

// at returns the share with key k, and adds share if it is missing. The pointer is valid until the next call.
func (t *shareTable[S]) at(k key, share S) *S {
	i, ok := t.index[k]
	if !ok {
		i = len(t.rows)
		t.index[k] = i
		t.rows = append(t.rows, share)
	}
	return &t.rows[i]
}
