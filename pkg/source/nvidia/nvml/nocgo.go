// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package nvml

// Available reports whether this program can be the child: without cgo NVML, a C library, cannot be used.
const Available = false
