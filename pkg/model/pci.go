// SPDX-License-Identifier: Apache-2.0

package model

// IsPCIAddress reports whether s is the address of a PCI function: 0000:18:00.2.
func IsPCIAddress(s string) bool {
	const form = "hhhh:hh:hh.h"
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
		if form[i] == 'h' && !hex || form[i] != 'h' && c != form[i] {
			return false
		}
	}
	return true
}
