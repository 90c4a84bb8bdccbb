// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/hca"
)

// TestDomains: protection domains are counted by the module that allocated them, in recorded replies of three kernels and in a
// constructed one of an mlx5 bond on 6.12, with a second partition of IPoIB and an NFS mount.
func TestDomains(t *testing.T) {
	pd := func(used uint64, owner []byte) []byte { return hca.Nest(attrPD+1, hca.U64(attrUseCount, used), owner) }
	kernel := func(used uint64, module string) []byte { return pd(used, hca.Text(attrKernName, module)) }
	message := func(of ...[]byte) []byte {
		return hca.Reply(cmdPDGet, unix.NLM_F_MULTI, hca.U32(attrDevIndex, 3), hca.Text(attrDevName, "mlx5_bond_0"), hca.Nest(attrPD, of...))
	}
	bond := slices.Concat(
		message(kernel(0, "mlx5_ib"), kernel(7, "ib_core"), kernel(1, "mlx5_ib"), pd(9, hca.U32(attrPID, 41)), kernel(0, "ib_ipoib")),
		message(pd(0, nil), kernel(2, "ib_ipoib"), kernel(0, "ib_srp"), kernel(3, "rpcrdma")),
		hca.Done(),
	)
	replies := map[string]struct {
		b    []byte
		want []model.Domains
	}{
		"constructed": {bond, []model.Domains{
			{Count: 2, Used: 1},
			{Module: "mlx5_ib", Count: 2, Used: 1},
			{Module: "ib_core", Count: 1, Used: 1},
			{Module: "ib_ipoib", Count: 2, Used: 1},
			{Module: "ib_srp", Count: 1},
			{Module: "rpcrdma", Count: 1, Used: 1},
		}},
	}
	for _, kernel := range []string{"5.10", "6.1", "6.12"} {
		b, err := os.ReadFile(filepath.Join("testdata", kernel, "res_pd.bin"))
		if err != nil {
			t.Fatal(err)
		}
		c := replies[kernel]
		c.b, c.want = b, []model.Domains{{Count: 5, Used: 5}, {Module: "ib_core", Count: 1, Used: 1}}
		replies[kernel] = c
	}
	for name, c := range replies {
		d := newDevice("mlx5_bond_0", "", "", nil)
		conn, err := fakeKernel(t, func([]byte) [][]byte { return [][]byte{c.b} })()
		if err != nil {
			t.Fatal(err)
		}
		var failed sysfs.Tally
		got := d.readDomains(conn, time.Now(), time.Now().Add(time.Minute), &failed)
		for i := range c.want {
			c.want[i].Device = "mlx5_bond_0"
		}
		if diff := cmp.Diff(c.want, got); diff != "" || failed.Bad != 0 {
			t.Errorf("%s: %v (-want +got)\n%s", name, failed.First, diff)
		}
		conn.Close()
	}
}

// TestReadDomains: a source lists them with the rest of a reading, and reports a failure for the device. Then the device has no line.
func TestReadDomains(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	refuse := false
	s := netlinkSource(t, tr, fakeKernel(t, func(r []byte) [][]byte {
		switch native.Uint16(r[4:]) & 0x3ff {
		case cmdGet:
			return [][]byte{slices.Concat(hca.Reply(cmdGet, unix.NLM_F_MULTI, hca.U32(attrDevIndex, 3), hca.Text(attrDevName, "mlx5_0"),
				hca.U64(attrNodeGUID, 0xa088c20300000000)), hca.Done())}
		case cmdPDGet:
			if refuse {
				return [][]byte{hca.Failure(unix.ENOMEM)}
			}
			return [][]byte{recorded(t, "res_pd")}
		}
		return [][]byte{hca.Done()}
	}))
	want := []model.Domains{{Device: "mlx5_0", Count: 5, Used: 5}, {Device: "mlx5_0", Module: "ib_core", Count: 1, Used: 1}}
	if diff := cmp.Diff(want, mustRead(t, s).Domains); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	refuse = true
	if snap := mustRead(t, s); snap.Domains != nil || !strings.Contains(snap.DeviceStates[0].Reason, "RES_PD_GET") {
		t.Errorf("%+v, %+v", snap.Domains, snap.DeviceStates)
	}
}
