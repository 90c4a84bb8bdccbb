// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/gen"
)

// defaultKey is the key of nodes without a key file. Everyone knows it: whoever has the id of a communicator can compute its Key.
const defaultKey = "accelscope collective"

// keyer hashes the ids of communicators. All nodes that compare communicators have the same key.
type keyer struct{ key, boot string }

// newKeyer reads the key file, if there is one.
func newKeyer(file, boot string) (keyer, error) {
	if file == "" {
		return keyer{defaultKey, boot}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return keyer{}, fmt.Errorf("key of communicators: %w", err)
	}
	key := strings.TrimSpace(string(text))
	if key == "" {
		return keyer{}, fmt.Errorf("key of communicators: %w", errors.New(file+" is empty"))
	}
	return keyer{key, boot}, nil
}

// of returns the Key of a communicator, or at another path the Key of the communicator from which it was made. Ranks on all nodes get the
// same Key, except ranks of ncclCommInitAll, which has no id: their processes are on one node.
func (k keyer) of(c *gen.CollectiveCommunicator, path uint64) string {
	mac := hmac.New(sha256.New, []byte(k.key))
	if has(c, gen.CollectiveCollectiveFlagLOCAL) {
		mac.Write([]byte("process " + k.boot + " " + strconv.Itoa(int(c.Tgid))))
		mac.Write(binary.LittleEndian.AppendUint64(nil, c.Started))
	} else {
		mac.Write([]byte("id "))
		mac.Write(c.Id[:])
	}
	mac.Write(binary.LittleEndian.AppendUint64(nil, path))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

func has(c *gen.CollectiveCommunicator, flag gen.CollectiveCollectiveFlag) bool {
	return c.Flags&uint32(flag) != 0
}

// isLate reports whether a communicator has no Key.
func isLate(c *gen.CollectiveCommunicator) bool {
	return !has(c, gen.CollectiveCollectiveFlagIDENTIFIED) && !has(c, gen.CollectiveCollectiveFlagLOCAL)
}
