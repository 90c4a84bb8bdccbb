// SPDX-License-Identifier: Apache-2.0

package guides

import (
	"reflect"
	"strings"
	"testing"
)

func TestBlocks(t *testing.T) {
	got, err := blocks("# x\n```sh\none   # comment\ncat >f <<'EOF'\na\n```\nEOF\n```\n\n```\nout\n```\n\n- x\n\n  ```sh\n  two\n  ```\ntext\n```\nnot of two\n```\n")
	want := []block{
		{2, []string{"one", "cat >f <<'EOF'\na\n```\nEOF"}, []string{"out"}},
		{16, []string{"two"}, nil},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %+v", err, got)
	}
	if _, err := blocks("```sh\nmake\n"); err == nil {
		t.Error("a block without an end is none")
	}
}

func TestPrints(t *testing.T) {
	for want, ok := range map[string]bool{"a": true, "a\nc": true, "c\na": false, "b…": true, "b": false, "…d": false} {
		if err := prints("a\nb 1\nc\n", strings.Split(want, "\n")); (err == nil) != ok {
			t.Errorf("%q: %v", want, err)
		}
	}
}
