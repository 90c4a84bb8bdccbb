// SPDX-License-Identifier: Apache-2.0

package returnprobe

// emulatedLeaf is the function that experiments probe. It begins with an instruction that the kernel emulates.
//
// A probe of it, also of its return in a process that may have one at all (returnprobe.go), is safe for the Go runtime:
//
//   - It is a leaf in assembly: NOSPLIT, calling nothing, so its stack is never grown. An emulated push and the kernel's
//     return trampoline (three registers) write below the stack pointer, within what NOSPLIT functions may use. Go keeps
//     nothing below the stack pointer.
//   - While it runs, its return address may be the kernel's, which would be fatal for a walk of the stack. Scanning, copying
//     and shrinking a stack wait until the goroutine is at a safe point. A function without pointer maps, as assembly is, has
//     none (isAsyncSafePoint), nor has the trampoline, as its address belongs to no function.
//   - A profiling signal walks the stack where it hits, but stops silently at an unknown address.
//
//go:noescape
func emulatedLeaf()

// leafAddress returns the address of its first instruction: Go function values point to wrappers.
//
//go:noescape
func leafAddress() uintptr
