// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// FormatGUID formats a GUID (EUI-64) as 0x and 16 digits, like infiniband-diags. All GUIDs of the model have this
// format, so that labels of devices and fabric nodes match.
func FormatGUID(guid uint64) string { return fmt.Sprintf("0x%016x", guid) }
