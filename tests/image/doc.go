// SPDX-License-Identifier: Apache-2.0

// Package image tests the results of `make image`: the archives in bin, of both architectures and with the tools of the
// fabric, are unpacked, checked, and run in a chroot. It needs root. `make test-image` builds them.
package image
