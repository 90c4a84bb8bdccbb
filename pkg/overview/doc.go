// SPDX-License-Identifier: Apache-2.0

// Package overview computes who uses what on the node: one row for each workload and each HCA or GPU that it uses, as
// in /api/v1/workloads and the pages.
//
// Rows is pure: it adds up the shares of one refresh. Rates and percentiles need an earlier refresh, whose counters a
// Recorder keeps. The Recorder also has the last 15 minutes of each row and device, in rings of a fixed size. Callers
// pass it refreshes; it reads nothing.
package overview
