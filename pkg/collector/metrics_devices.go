// SPDX-License-Identifier: Apache-2.0

package collector

func devicesMetrics() []metric { return nil }
