// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	noRank    = -1
	maxDigits = 10 // of a rank
	maxRanks  = 64 // length of the ranks of a workload as text
)

// parseRanks returns the values of variables in an environment, or noRank for missing variables and other texts. The
// process can change its environment. Like getenv, it takes the first entry of a name.
func parseRanks(environ []byte, variables []string) []int64 {
	values := make([]int64, len(variables))
	seen := make([]bool, len(variables))
	for i := range values {
		values[i] = noRank
	}
	for {
		entry, rest, whole := bytes.Cut(environ, []byte{0})
		if !whole { // cut at the limit
			return values
		}
		environ = rest
		name, value, ok := bytes.Cut(entry, []byte("="))
		i := slices.Index(variables, string(name))
		if !ok || i < 0 || seen[i] {
			continue
		}
		seen[i] = true
		if len(value) == 0 || len(value) > maxDigits || len(bytes.Trim(value, "0123456789")) > 0 {
			continue
		}
		if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
			values[i] = n
		}
	}
}

// ranksOf returns the ranks of the processes of a workload as text: 3, or 0..7, or 0,2. It uses the first variable that
// a process has. It returns "" without a rank, or if the text would be too long.
func ranksOf(processes map[process]reading, variables int) string {
	for i := range variables {
		numbers := map[int64]bool{}
		for _, values := range processes {
			if values != nil && values[i] != noRank {
				numbers[values[i]] = true
			}
		}
		if len(numbers) > 0 {
			return rankText(slices.Sorted(maps.Keys(numbers)))
		}
	}
	return ""
}

func rankText(numbers []int64) string {
	var b strings.Builder
	for i := 0; i < len(numbers) && b.Len() <= maxRanks; {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(numbers[i], 10))
		if last > i {
			b.WriteString(".." + strconv.FormatInt(numbers[last], 10))
		}
		i = last + 1
	}
	if b.Len() > maxRanks {
		return ""
	}
	return b.String()
}
