// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
	"github.com/accelscope/accelscope/pkg/model"
)

// FuzzLine inserts a line into each file: the results of the other lines do not change.
func FuzzLine(f *testing.F) {
	v1, v2 := fakeV1(""), fakeV2()
	linetest.Fuzz(f, []linetest.Parser{
		{Name: "memory.stat", Text: v2["memory.stat"], Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			pairs(b, &boundedfile.Skipped{}, func(key []byte, v float64) { out[string(key)] = fmt.Sprint(v) })
			return out
		}},
		{Name: "cpu.pressure", Text: v2["cpu.pressure"], Parse: func(b []byte) map[string]string {
			var some, full model.Optional
			parsePressure(b, &boundedfile.Skipped{}, &some, &full)
			out := map[string]string{}
			for name, v := range map[string]model.Optional{"some": some, "full": full} {
				if v.Known {
					out[name] = fmt.Sprint(v)
				}
			}
			return out
		}},
		{Name: "io.stat", Text: v2["io.stat"], Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			for _, d := range parseIO(b, &boundedfile.Skipped{}) {
				out[fmt.Sprint(d.Major, ":", d.Minor)] = fmt.Sprint(d)
			}
			return out
		}},
		{Name: "blkio", Text: v1["blkio/blkio.throttle.io_serviced_recursive"], Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			parseBlkio(b, &boundedfile.Skipped{}, func(major, minor uint32, operation string, v float64) {
				out[fmt.Sprint(major, ":", minor, operation)] = fmt.Sprint(v)
			})
			return out
		}},
		{
			Name: "net/dev", Headings: 2,
			Text: "Inter-|\n face |\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" +
				" .lan0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
			Parse: func(b []byte) map[string]string {
				out := map[string]string{}
				list, _ := parseNetDev(b, &boundedfile.Skipped{})
				for _, i := range list {
					out[i.Name] = fmt.Sprint(i)
				}
				return out
			},
		},
		{Name: "partitions", Text: partitions, Headings: 2, Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			for d, name := range parsePartitions(b, &boundedfile.Skipped{}) {
				out[fmt.Sprint(d)] = name
			}
			return out
		}},
	})
}
