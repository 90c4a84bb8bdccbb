// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// FormatGUID formats a GUID (EUI-64) as 0x and 16 digits, as infiniband-diags do. Every GUID of the model has this format,
// so that the labels of a device and of a node of the fabric are equal.
func FormatGUID(guid uint64) string { return fmt.Sprintf("0x%016x", guid) }
