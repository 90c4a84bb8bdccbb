// SPDX-License-Identifier: Apache-2.0

package child

import (
	"bufio"
	"encoding/json"
	"io"
)

// Address returns the address in the line of accelscope's log that reports listening, with --log.format=json.
func Address(line []byte) (address string, ok bool) {
	var l struct{ Msg, Address string }
	err := json.Unmarshal(line, &l)
	return l.Address, err == nil && l.Msg == "Listening on"
}

// Addresses reads such a log to its end. It sends each address, and then closes the channel.
func Addresses(log io.Reader) <-chan string {
	addresses := make(chan string, 1)
	go func() {
		defer close(addresses)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if address, ok := Address(lines.Bytes()); ok {
				addresses <- address
			}
		}
	}()
	return addresses
}
