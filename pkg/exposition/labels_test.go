// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"testing"

	"github.com/accelscope/accelscope/pkg/identity"
)

// TestInvalidValues checks that values that become equal when made valid give one series.
func TestInvalidValues(t *testing.T) {
	l := newLabels()
	s := newSchema([]string{"interface"})
	l.begin()
	a, b := l.get(s, nil, "a\xff"), l.get(s, nil, "a\xfe")
	if a != b || a.text != "interface=\"a\uFFFD\"" {
		t.Errorf("%p %s, %p %s", a, a.text, b, b.text)
	}
	if l.get(s, nil, "a\xff") != a {
		t.Error("another set for the same value")
	}
	l.end()
}

// TestReplacedValues checks that a changed fourth label leaves no label set behind.
func TestReplacedValues(t *testing.T) {
	l := newLabels()
	s := newSchema([]string{"a", "b", "c", "d"})
	for i := range 100 {
		l.begin()
		l.get(s, nil, "1", "2", "3", fmt.Sprint("changes ", i))
		l.end()
	}
	if len(l.sets) != 1 || len(l.pairs) > 8 {
		t.Errorf("%d sets, %d pairs", len(l.sets), len(l.pairs))
	}
}

// TestGPULabels checks that GPU labels are made valid once and removed with the GPUs.
func TestGPULabels(t *testing.T) {
	l := newLabels()
	s := newSchema([]string{"gpu_id", "uuid", "type", "scope", "block"})
	l.begin()
	a, b := l.gpu(nil, "0", "G\xff"), l.gpu(nil, "0", "G\xfe")
	if a != b || l.gpu(nil, "1", "G\xff") == a || l.gpu(l.owner(identity.Owner{Workload: "w"}), "0", "G\xff") == a {
		t.Error("GPUs are mixed up")
	}
	x, y := l.get(s, a, "corrected", "volatile", "dram"), l.get(s, a, "corrected", "volatile", "sram")
	if x == y || x.text != `block="dram",gpu_id="0",scope="volatile",type="corrected",uuid="G`+"\uFFFD\"" {
		t.Error(x.text)
	}
	l.end()
	for range 2 {
		l.begin()
		l.end()
	}
	if len(l.gpus)+len(l.sets)+len(l.owners) > 0 {
		t.Errorf("%d GPUs, %d sets are left", len(l.gpus), len(l.sets))
	}
}
