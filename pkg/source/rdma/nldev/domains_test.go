// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestDomains: protection domains are counted by the module that allocated them, in recorded replies of three kernels
// and in a constructed reply of an mlx5 bond on 6.12, with a second partition of IPoIB and an NFS mount.
func TestDomains(t *testing.T) {
	pd := func(used uint64, owner []byte) []byte { return hca.Nest(AttrPD+1, hca.U64(AttrUseCount, used), owner) }
	kernel := func(used uint64, module string) []byte { return pd(used, hca.Text(AttrKernName, module)) }
	message := func(of ...[]byte) []byte {
		return hca.Reply(CmdPDGet, unix.NLM_F_MULTI, hca.U32(AttrDevIndex, 3), hca.Text(AttrDevName, "mlx5_bond_0"), hca.Nest(AttrPD, of...))
	}
	bond := slices.Concat(
		message(kernel(0, "mlx5_ib"), kernel(7, "ib_core"), kernel(1, "mlx5_ib"), pd(9, hca.U32(AttrPID, 41)), kernel(0, "ib_ipoib")),
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
		conn, err := fakeKernel(t, func([]byte) [][]byte { return [][]byte{c.b} })()
		if err != nil {
			t.Fatal(err)
		}
		got, err := conn.Domains(3, time.Now().Add(time.Minute))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
		conn.Close()
	}
}
