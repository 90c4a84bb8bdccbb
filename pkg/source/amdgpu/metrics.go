// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// A gpu_metrics file starts with its size (two bytes), then the revision of its format and of
// its content (one byte each). Unused fields are all ones.
const metricsHeader = 4

// errRevision reports a table with an unsupported revision.
var errRevision = errors.New("unknown revision")

// joules is the unit of energy accumulators.
const joules = 1.0 / (1 << 16)

// table is the content of one gpu_metrics file, in the units of the model.
type table struct {
	revision           string
	gfx, memory, video model.Optional // busy ratios, 0 to 1
	jpeg               model.Optional
	temperatures       []model.Figure
	power, energy      model.Optional
	clocks             []model.Figure
	throttles          []model.GPUCondition // nil if the table has no throttle bits
	cycles             model.Optional       // of the firmware
	throttled          []model.Figure       // the part of them with throttling
	clock              float64              // time of the table, in seconds
	pcie               model.GPUPCIe
	links              []model.GPULink
	partitions         []partitionActivity
	zeros              bool // the firmware has filled in nothing: a virtual function, which has no sensors
}

// partitionActivity is the busy ratio of one partition.
type partitionActivity struct{ gfx, video, jpeg model.Optional }

// values are the raw numbers of a table: for each field the filled ones, by index.
type values struct {
	of    fields
	parts []fields
}

type reading struct {
	index int
	raw   uint64
}

// parseMetrics parses a gpu_metrics file.
func parseMetrics(b []byte) (table, error) {
	if len(b) < metricsHeader {
		return table{}, fmt.Errorf("gpu_metrics: %d bytes: %w", len(b), errRevision)
	}
	size := int(binary.LittleEndian.Uint16(b))
	format, content := b[2], b[3]
	t := table{revision: fmt.Sprintf("%d.%d", format, content)}
	var v values
	var ok bool
	switch {
	case size < metricsHeader || size > len(b):
	case format == 1 && content == 9:
		ok = v.attributes(b[:size])
	default:
		for _, l := range layouts[[2]uint8{format, content}] {
			if l.size == size {
				v.read(l, b[:size])
				ok = true
			}
		}
	}
	if !ok {
		return table{}, fmt.Errorf("gpu_metrics: revision %s, %d of %d bytes: %w", t.revision, size, len(b), errRevision)
	}
	if v.zeros() {
		t.zeros = true
		return t, nil
	}
	t.take(&v)
	return t, nil
}

// read reads the members of a struct.
func (v *values) read(l layout, b []byte) {
	at := align(members(l.members, b, metricsHeader, &v.of), 8)
	for range l.partitions {
		var part fields
		members(l.partition, b, at, &part)
		v.parts = append(v.parts, part)
		at += l.stride
	}
}

// members reads the members of a struct from the given offset and returns the offset after it.
func members(ms []member, b []byte, at int, into *fields) int {
	for _, m := range ms {
		at = align(at, m.width)
		for i := range m.number {
			if at+m.width > len(b) {
				return at
			}
			if m.id != ignored {
				into.add(m.id, i, b[at:at+m.width])
			}
			at += m.width
		}
	}
	return at
}

func align(at, width int) int { return (at + width - 1) / width * width }

// add stores a number unless it is all ones.
func (r *fields) add(i id, index int, b []byte) {
	var raw uint64
	filled := false
	for n, c := range b {
		raw |= uint64(c) << (8 * n)
		filled = filled || c != 0xff
	}
	if filled {
		r[i] = append(r[i], reading{index, raw})
	}
}

// attributes reads a table of revision 1.9: after the header a count, then for each attribute
// 64 bits with its type (bits 20-23), its number (10-19) and its number of values (0-9),
// followed by the values without alignment.
func (v *values) attributes(b []byte) bool {
	const head = metricsHeader + 4
	if len(b) < head {
		return false
	}
	count := binary.LittleEndian.Uint32(b[metricsHeader:])
	at := head
	for range count {
		if at+8 > len(b) {
			return false
		}
		code := binary.LittleEndian.Uint64(b[at:])
		at += 8
		kind, number, n := code>>20&0xf, code>>10&0x3ff, int(code&0x3ff)
		if kind > 7 { // unknown size
			return false
		}
		width := 1 << (kind / 2)
		if at+n*width > len(b) {
			return false
		}
		field := attributes[number]
		if n == 1 && (field == xgmiRead || field == xgmiWritten) {
			field = ignored // sum over all links
		}
		for i := range n {
			if field != ignored {
				v.of.add(field, i, b[at:at+width])
			}
			at += width
		}
	}
	return true
}

// zeros reports whether all temperatures, powers, energies and clocks of a table are 0, which no running chip has. Its percentages of
// 0 are no idle GPU, then.
func (v *values) zeros() bool {
	read := false
	for _, i := range []id{
		temperatureEdge, temperatureHotspot, temperatureMemory, temperatureHBM, power, energy,
		clockGFX, clockSoC, clockMemory, clockFabric, clockVideo,
	} {
		for _, r := range v.of[i] {
			if r.raw != 0 {
				return false
			}
			read = true
		}
	}
	return read
}

// sensors are the names of temperatures, the same as hwmon's where both exist.
var sensors = []struct {
	id   id
	name string
}{
	{temperatureEdge, "edge"},
	{temperatureHotspot, "junction"},
	{temperatureMemory, "memory"},
	{temperatureVRGFX, "vr_graphics"},
	{temperatureVRSoC, "vr_soc"},
	{temperatureVRMemory, "vr_memory"},
}

var clockNames = []struct {
	id   id
	name string
}{
	{clockGFX, "graphics"},
	{clockSoC, "soc"},
	{clockMemory, "memory"},
	{clockFabric, "fabric"},
	{clockVideo, "video"},
}

// take converts the numbers of a table.
func (t *table) take(v *values) {
	t.gfx, t.memory, t.video = v.of.mean(activityGFX), v.of.mean(activityMemory), v.of.mean(activityVideo)
	for _, s := range sensors {
		if c := v.of.first(s.id); c.Value != 0 { // 0 is no sensor
			t.temperatures = drm.Put(t.temperatures, s.name, c)
		}
	}
	for _, r := range v.of[temperatureHBM] {
		if r.raw != 0 { // an absent stack
			t.temperatures = append(t.temperatures, model.Figure{Name: "hbm" + strconv.Itoa(r.index), Value: float64(r.raw)})
		}
	}
	for _, c := range clockNames {
		// The fastest of several: the others may be asleep.
		if len(v.of[c.id]) > 0 {
			mhz := slices.MaxFunc(v.of[c.id], func(a, b reading) int { return int(a.raw) - int(b.raw) }).raw
			t.clocks = append(t.clocks, model.Figure{Name: c.name, Value: float64(mhz) * 1e6})
		}
	}
	t.power = v.of.first(power)
	// The unit is known for data center chips only.
	if e := v.of.first(energy); e.Known && len(v.of[busyGFX]) > 0 {
		t.energy = model.Some(e.Value * joules)
	}
	// The second die of an MI250 reports zeros for both: the first one counts for the board.
	if t.power == model.Some(0) && t.energy == model.Some(0) {
		t.power, t.energy = model.Optional{}, model.Optional{}
	}
	t.clock = v.of.first(driverClock).Value / 1e9
	t.takeLinks(v)
	for i := range v.parts {
		p := &v.parts[i]
		t.partitions = append(t.partitions, partitionActivity{p.mean(partitionGFX), p.mean(partitionVideo), p.mean(partitionJPEG)})
		for _, part := range []id{
			partitionVideo, partitionJPEG, cyclesBelowLimit, cyclesBelowLimitPower, cyclesBelowLimitThermal,
		} {
			v.of[part] = append(v.of[part], p[part]...)
		}
	}
	t.takeThrottles(v)
	if t.jpeg = v.of.mean(activityJPEG); !t.jpeg.Known {
		t.jpeg = v.of.mean(partitionJPEG)
	}
	if !t.video.Known {
		t.video = v.of.mean(partitionVideo)
	}
}

func (t *table) takeLinks(v *values) {
	if w := v.of.first(pcieWidth); w.Value > 0 {
		t.pcie.Width = w
	}
	t.pcie.Generation = generation(v.of.first(pcieSpeed).Value / 10)
	t.pcie.Replays, t.pcie.ReplayRollovers = v.of.first(pcieReplays), v.of.first(pcieRollovers)
	t.pcie.Recoveries = v.of.first(pcieRecoveries)
	t.pcie.NAKsSent, t.pcie.NAKsReceived = v.of.first(pcieNAKsSent), v.of.first(pcieNAKsReceived)
	links := map[int]*model.GPULink{}
	link := func(r reading) *model.GPULink {
		if links[r.index] == nil {
			links[r.index] = &model.GPULink{Kind: model.XGMI, Number: r.index}
		}
		return links[r.index]
	}
	for _, r := range v.of[xgmiRead] {
		link(r).Receive = model.Some(float64(r.raw) * 1024)
	}
	for _, r := range v.of[xgmiWritten] {
		link(r).Transmit = model.Some(float64(r.raw) * 1024)
	}
	for _, r := range v.of[xgmiStatus] {
		if r.raw <= 1 {
			link(r).Up = model.Some(float64(r.raw))
		}
	}
	for _, l := range links {
		t.links = append(t.links, *l)
	}
	slices.SortFunc(t.links, func(a, b model.GPULink) int { return a.Number - b.Number })
}

// fields are the readings of each field.
type fields [ids][]reading

func (r *fields) first(i id) model.Optional {
	if len(r[i]) == 0 {
		return model.Optional{}
	}
	return model.Some(float64(r[i][0].raw))
}

// average returns the mean of all readings of a field.
func (r *fields) average(i id) model.Optional {
	if len(r[i]) == 0 {
		return model.Optional{}
	}
	sum := 0.0
	for _, v := range r[i] {
		sum += float64(v.raw)
	}
	return model.Some(sum / float64(len(r[i])))
}

// mean returns the mean of percentages, as a ratio. Impossible values are ignored: some
// firmware uses other units.
func (r *fields) mean(i id) model.Optional {
	sum, n := 0.0, 0
	for _, v := range r[i] {
		if v.raw <= 100 {
			sum += float64(v.raw)
			n++
		}
	}
	if n == 0 {
		return model.Optional{}
	}
	return model.Some(sum / float64(n) / 100)
}

// generation returns the PCIe generation with this speed in GT/s.
func generation(gigatransfers float64) model.Optional {
	for i, speed := range []float64{2.5, 5, 8, 16, 32, 64} {
		if gigatransfers == speed {
			return model.Some(float64(i + 1))
		}
	}
	return model.Optional{}
}
