// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// BenchmarkDump dumps 200,000 memory regions of one HCA, which a FAKE kernel lists 150 at a time.
func BenchmarkDump(b *testing.B) {
	const regions, perMessage = 200_000, 150
	var messages [][]byte
	for i := 0; i < regions; i += perMessage {
		var entries []byte
		for id := uint32(i); id < min(uint32(i+perMessage), regions); id++ {
			entries = append(entries, hca.Nest(AttrMR+1, hca.U32(AttrMRN, id), hca.U64(AttrMRLen, 4096), hca.U32(AttrPID, 41), hca.U32(AttrPDN, 5))...)
		}
		messages = append(messages, hca.Reply(CmdMRGet, unix.NLM_F_MULTI, hca.Text(AttrDevName, "mlx5_0"), hca.Nest(AttrMR, entries)))
	}
	messages = append(messages, hca.Done())
	dial := fakeKernel(b, func(r []byte) [][]byte {
		if native.Uint16(r[4:])&0x3ff == CmdMRGet {
			return messages
		}
		return [][]byte{hca.Done()}
	})
	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		objects, err := Objects(dial, Device{Index: 4, Name: "mlx5_0"}, []model.ObjectType{model.MR}, time.Now().Add(time.Minute))
		if err != nil || len(objects) != regions {
			b.Fatal(len(objects), err)
		}
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "allocated-MB")
	}
}
