// SPDX-License-Identifier: Apache-2.0

// Package verdict judges the refreshes of the engine: which conditions of ports, GPUs, workloads and of the sensor itself are
// wrong now. It is pure: it reads no file and no clock.
package verdict
