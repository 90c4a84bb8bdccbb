// SPDX-License-Identifier: Apache-2.0

package client

import "testing"

func TestOnNode(t *testing.T) {
	for text, want := range map[string]bool{
		"http://127.0.0.1:9847": true, "http://localhost:1/metrics": true, "https://[::1]:9847": true, "http://10.0.0.1:9847": false,
		"http://node7:9847": false,
	} {
		c, err := New(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.OnNode(); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
