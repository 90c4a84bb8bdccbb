// SPDX-License-Identifier: Apache-2.0

package procfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// OtherNetwork returns an error unless this process is in the network namespace of the node: of the first process in a procfs.
//
// An unknown namespace is an error, too: without CAP_SYS_PTRACE, or in a copy of procfs. A caller that takes a pod's namespace
// for the node's has wrong facts for as long as the sensor runs: interfaces of the pod, or no announcements of HCAs. A caller
// that takes the node's namespace for another only looks more often.
func OtherNetwork(procfs string) error {
	node, err := os.Stat(filepath.Join(procfs, "1/ns/net"))
	own, ownErr := os.Stat("/proc/self/ns/net")
	if err = errors.Join(err, ownErr); err != nil {
		return fmt.Errorf("the network namespace of the node is unknown: %w", err)
	}
	if !os.SameFile(node, own) {
		return errors.New("the sensor is in another network namespace than the node")
	}
	return nil
}
