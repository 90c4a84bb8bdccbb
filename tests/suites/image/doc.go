// SPDX-License-Identifier: Apache-2.0

// Package image tests the archives of `make image` in bin, of both architectures and with the fabric's tools: they are
// unpacked, checked, and run in a chroot. It needs root. `make test-image` builds them.
package image
