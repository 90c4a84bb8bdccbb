// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package nvml

// Available reports whether this program can be the child. NVML is a C library, so the child needs cgo.
const Available = false
