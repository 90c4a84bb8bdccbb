// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestDeviceType: netlink names the type of a device and its parent since Linux 6.11.
func TestDeviceType(t *testing.T) {
	var devices []Device
	for _, payload := range [][]byte{
		hca.Text(AttrDevName, "mlx5_0"),
		append(append(hca.Text(AttrDevName, "smi1"), hca.Attr(99, 1)...), hca.Text(100, "mlx5_0")...),
		append(hca.Text(AttrDevName, "later"), hca.Attr(99, 7)...),
	} {
		var err error
		if devices, err = parseDevice(devices, payload); err != nil {
			t.Fatal(err)
		}
	}
	want := []Device{{Name: "mlx5_0"}, {Name: "smi1", SMI: true, Parent: "mlx5_0"}, {Name: "later"}}
	if diff := cmp.Diff(want, devices, cmp.AllowUnexported(Device{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
