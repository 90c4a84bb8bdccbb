// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"io"
	"os"
	"strings"
)

const maxHeaders = 64 << 10 // bytes of the file

// readHeaders returns names and values of a file of headers alternately. Values are secrets: no error contains them.
func readHeaders(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHeaders+1))
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	if len(text) > maxHeaders {
		return nil, fmt.Errorf("headers: %s has more than %d bytes", path, maxHeaders)
	}
	headers, err := parseHeaders(string(text))
	if err != nil {
		return nil, fmt.Errorf("headers: %s: %w", path, err)
	}
	return headers, nil
}

// parseHeaders parses lines "NAME: VALUE". It skips empty lines and lines that begin with #.
func parseHeaders(text string) ([]string, error) {
	var headers []string
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok:
			return nil, fmt.Errorf("line %d is not NAME: VALUE", n)
		case !headerName(name):
			return nil, fmt.Errorf("line %d: a name consists of letters, digits, '-', '_' and '.', "+
				"and does not begin with grpc-", n)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, fmt.Errorf("line %d: a value consists of printable ASCII characters", n)
		}
		headers = append(headers, name, value)
	}
	return headers, nil
}

func headerName(name string) bool {
	return name != "" && !strings.HasPrefix(name, "grpc-") && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}
