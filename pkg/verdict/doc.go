// SPDX-License-Identifier: Apache-2.0

// Package verdict judges the refreshes of the engine: which conditions of ports, GPUs, workloads and of the sensor
// itself hold now. It is pure: it reads no file and no clock.
//
// A condition has one definition (condition.go), and shares its name with its alert. A Judge gets each refresh and
// keeps what it needs for the next: the growth of counters within a window (growth.go), the last moment at which a port
// was active or a GPU was used, and since when each condition holds. Its memory is bounded: by devices, and for
// workloads by owner, by namespace and in total (room.go), so that no tenant can take the room of another. What had no
// room is counted.
//
// Each subject has a type for its rules, in the file of its name: missing.go, ports.go, pcie.go, linerate.go, gpus.go,
// linger.go, workloads.go, jobs.go, idle.go, sensor.go. These types share a round. roles.go finds what the HCAs of the node are
// used for.
package verdict
