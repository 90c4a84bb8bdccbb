// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
)

// FuzzLine inserts a line into each file: the results of the other lines do not change.
func FuzzLine(f *testing.F) {
	file := filepath.Join(f.TempDir(), "passwd")
	one := func(value string, ok bool) map[string]string {
		if !ok {
			return nil
		}
		return map[string]string{"value": value}
	}
	linetest.Fuzz(f, []linetest.Parser{
		{Name: "rdma.current", Text: "mlx5_0 hca_handle=1 hca_object=20\nmlx5_1 hca_handle=2 hca_object=3\n", Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			for _, c := range parseRDMA(nil, 7, b, &boundedfile.Skipped{}) {
				out[c.Device] = fmt.Sprint(c)
			}
			return out
		}},
		{Name: "cgroup", Text: "12:memory:/a\n11:devices:/b\n0::/c\n", Parse: func(b []byte) map[string]string {
			return one(procCgroup(b, "devices"))
		}},
		{
			Name: "mountinfo", Text: "20 1 0:30 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n21 1 0:31 / /tmp rw - tmpfs t rw\n",
			Parse: func(b []byte) map[string]string {
				root := mountRoot(b, "/sys/fs/cgroup")
				return one(root, root != "/")
			},
		},
		{Name: "passwd", Text: "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n", Parse: func(b []byte) map[string]string {
			if err := os.WriteFile(file, b, 0o600); err != nil {
				f.Fatal(err)
			}
			p := passwd{path: file}
			p.read()
			return p.names
		}},
	})
}

// TestRDMANames: the kernel accepts spaces in the name of an RDMA device, and writes it as it is.
func TestRDMANames(t *testing.T) {
	text := "mlx5 data hca_handle=1 hca_object=2\nroce,1 hca_handle=3 hca_object=4 hca_new=5 \na b=c hca_handle=6 hca_object=7\nréseau0 hca_handle=8 hca_object=9\n"
	var got []string
	for _, c := range parseRDMA(nil, 7, []byte(text), &boundedfile.Skipped{}) {
		got = append(got, fmt.Sprintf("%s %d %d", c.Device, c.Handles, c.Objects))
	}
	want := []string{"mlx5 data 1 2", "roce,1 3 4", "a b=c 6 7", "réseau0 8 9"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
