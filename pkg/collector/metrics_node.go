// SPDX-License-Identifier: Apache-2.0

package collector

func nodeMetrics() []metric { return nil }
