// SPDX-License-Identifier: Apache-2.0

// Package overview computes who uses what on the node: one row for each workload and each HCA or GPU that the workload uses, as
// /api/v1/workloads and the pages show them.
//
// Rows is pure: it adds up the shares of one refresh. Rates and percentiles need two refreshes; a Recorder remembers the counters
// of an earlier one. The Recorder also has the last 15 minutes of each row and each device, in rings of a fixed size. It reads
// nothing: whoever obtains a refresh passes it on.
package overview
