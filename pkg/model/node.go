// SPDX-License-Identifier: Apache-2.0

package model

// Node is what the kernel tells of the node as a whole.
type Node struct{}
