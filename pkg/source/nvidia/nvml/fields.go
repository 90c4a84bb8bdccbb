// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// field is a value of nvmlDeviceGetFieldValues. For most fields of NVLinks, the scope is the number of a link.
type field struct{ id, scope uint32 }

const (
	// allLinks is the scope of the sum over all NVLinks.
	allLinks = math.MaxUint32
	// fieldsMax bounds the fields of one call. DCGM asks for up to NVML_FI_MAX (about 300) fields.
	fieldsMax = 256
)

// roundFields are read in every round, apart from the fields of links.
var roundFields = func() []field {
	fields := []field{
		{id: nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION}, {id: nvml.FI_DEV_PCIE_REPLAY_COUNTER}, {id: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION},
	}
	for _, v := range violations {
		for _, id := range v.fields {
			fields = append(fields, field{id: id})
		}
	}
	return fields
}()

// slowFields are read in slow rounds.
var slowFields = func() (fields []field) {
	for _, l := range marginLimits {
		fields = append(fields, field{id: l.field})
	}
	return fields
}()

type fieldValues map[field]nvml.FieldValue

// fieldReader reads the fields of a device in few calls. It does not ask again for unsupported fields.
type fieldReader struct{ unsupported map[field]bool }

// retry makes the next read ask for all fields.
func (r *fieldReader) retry() { r.unsupported = nil }

func (r *fieldReader) read(d nvml.Device, wanted []field) fieldValues {
	values := make(fieldValues, len(wanted))
	request := make([]nvml.FieldValue, 0, len(wanted))
	for _, f := range wanted {
		if !r.unsupported[f] {
			request = append(request, nvml.FieldValue{FieldId: f.id, ScopeId: f.scope})
		}
	}
	for part := range slices.Chunk(request, fieldsMax) {
		if d.GetFieldValues(part) != nvml.SUCCESS {
			continue
		}
		for _, v := range part {
			f := field{v.FieldId, v.ScopeId}
			switch nvml.Return(v.NvmlReturn) {
			case nvml.SUCCESS:
				values[f] = v
			case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT:
				if r.unsupported == nil {
					r.unsupported = make(map[field]bool)
				}
				r.unsupported[f] = true
			}
		}
	}
	return values
}

// count returns a counter, if the driver reported it.
func (v fieldValues) count(id, scope uint32) (uint64, bool) {
	value, reported := v[field{id, scope}]
	if !reported {
		return 0, false
	}
	return integer(nvml.ValueType(value.ValueType), value.Value)
}

func (v fieldValues) scaled(id, scope uint32, per float64) model.Optional {
	n, ok := v.count(id, scope)
	if !ok {
		return model.Optional{}
	}
	return model.Some(float64(n) / per)
}

// signed returns a value that may be negative, if the driver reported it.
func (v fieldValues) signed(id, scope uint32) (float64, bool) {
	value, reported := v[field{id, scope}]
	if !reported {
		return 0, false
	}
	switch nvml.ValueType(value.ValueType) {
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(binary.NativeEndian.Uint32(value.Value[:4]))), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(binary.NativeEndian.Uint64(value.Value[:]))), true
	}
	n, ok := v.count(id, scope)
	return float64(n), ok && n <= math.MaxInt32
}

// integer returns a number from the union nvmlValue_t. It rejects unavailable (all ones) and negative values.
func integer(kind nvml.ValueType, v [8]byte) (uint64, bool) {
	n := binary.NativeEndian.Uint64(v[:])
	switch kind {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return n, n != math.MaxUint64
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		u := binary.NativeEndian.Uint32(v[:4])
		return uint64(u), u != math.MaxUint32
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(v[:2])), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return n, int64(n) >= 0
	case nvml.VALUE_TYPE_SIGNED_INT:
		i := int32(binary.NativeEndian.Uint32(v[:4]))
		return uint64(max(i, 0)), i >= 0
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(n)
		return uint64(max(0, min(f, math.MaxInt64))), f >= 0 && f < math.MaxInt64
	}
	return 0, false
}
