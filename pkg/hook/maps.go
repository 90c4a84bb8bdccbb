// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"

	"github.com/cilium/ebpf"
)

// How many entries one system call fetches. Fetching one by one costs ten times as much.
const batchSize = 1024

// Batches calls f with every entry of a hash map and returns how many there
// are. keys and values are kept for the next call; they hold batchSize at most.
func Batches[K, V any](m *ebpf.Map, keys *[]K, values *[]V, f func(K, *V)) (uint64, error) {
	size := min(batchSize, int(m.MaxEntries()))
	if len(*keys) < size {
		*keys, *values = make([]K, size), make([]V, size)
	}
	var cursor ebpf.MapBatchCursor
	var total uint64
	for {
		n, err := m.BatchLookup(&cursor, *keys, *values, nil)
		for i := range n {
			f((*keys)[i], &(*values)[i])
		}
		total += uint64(n)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Remove deletes keys; one that is gone already is fine.
func Remove[K any](m *ebpf.Map, keys []K) error {
	for _, k := range keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
