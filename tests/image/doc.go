// SPDX-License-Identifier: Apache-2.0

// Package image tests what `make image` builds: the archives in bin, of both architectures and with the tools of the
// fabric, are unpacked, looked through, and run in a root of their own. It needs root. `make test-image` builds what it
// looks at.
package image
