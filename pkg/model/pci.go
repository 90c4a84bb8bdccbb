// SPDX-License-Identifier: Apache-2.0

package model

import "regexp"

var pciAddress = regexp.MustCompile(`^[[:xdigit:]]{4}:[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[[:xdigit:]]$`)

// IsPCIAddress reports whether s is the address of a PCI function: 0000:18:00.2.
func IsPCIAddress(s string) bool { return pciAddress.MatchString(s) }
