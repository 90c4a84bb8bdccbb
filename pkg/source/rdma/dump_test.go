// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// BenchmarkDump dumps 200,000 memory regions of one HCA, which a FAKE kernel lists 150 at a time.
func BenchmarkDump(b *testing.B) {
	const regions, perMessage = 200_000, 150
	var messages [][]byte
	for i := 0; i < regions; i += perMessage {
		var entries []byte
		for id := uint32(i); id < min(uint32(i+perMessage), regions); id++ {
			entries = append(entries, nest(attrMR+1, attrU32(attrMRN, id), attrU64(attrMRLen, 4096), attrU32(attrPID, 41), attrU32(attrPDN, 5))...)
		}
		messages = append(messages, reply(cmdMRGet, unix.NLM_F_MULTI, attrStr(attrDevName, "mlx5_0"), nest(attrMR, entries)))
	}
	messages = append(messages, done())
	dial := fakeKernel(b, func(r []byte) [][]byte {
		if native.Uint16(r[4:])&0x3ff == cmdMRGet {
			return messages
		}
		return [][]byte{done()}
	})
	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		objects, err := dumpObjects(dial, nlDevice{index: 4, name: "mlx5_0"}, []model.ObjectType{model.MR}, time.Now().Add(time.Minute))
		if err != nil || len(objects) != regions {
			b.Fatal(len(objects), err)
		}
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "allocated-MB")
	}
}
