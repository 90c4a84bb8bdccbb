// SPDX-License-Identifier: Apache-2.0

// Package verdict judges the refreshes of the engine: which conditions of ports, GPUs, workloads and of the sensor itself hold now.
// It is pure: it reads no file and no clock.
//
// A condition has one definition (condition.go) and one name, which is that of its alert. A Judge is fed with each refresh and keeps
// what it needs of the earlier ones: the growth of counters within a window (growth.go), the last moment at which a port was active or a
// GPU was used, and since when each condition holds. What it keeps is bounded: by devices, and for workloads by owner, by namespace and
// in all (room.go), so that no tenant takes the place of others. What had no room is counted.
//
// Each subject has a type for its rules, in the file of its name: missing.go, ports.go, pcie.go, linerate.go, gpus.go, linger.go,
// workloads.go, idle.go, sensor.go. A round is what these types share. roles.go finds what the HCAs of the node are used for.
package verdict
