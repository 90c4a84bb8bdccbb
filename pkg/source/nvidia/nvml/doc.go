// SPDX-License-Identifier: Apache-2.0

// Package nvml is the child process of package nvidia that has NVML open. A program that contains this package becomes
// the child if it is started with wire.Argument.
//
// Any call into the driver may hang forever. So each GPU has one goroutine, a worker, which makes all calls for it.
// Read asks all workers concurrently for values that are cheap, waits for half a second at most, and does not wait for
// a worker that is still busy from an earlier Read. Between reads a worker reads slow values (processes, ECC, links)
// every interval.
//
// A GPU that runtime power management has suspended is not read.
package nvml
