// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// RAS is amdgpu's error counting: device/ras/BLOCK_err_count has the errors of one block since
// the driver was loaded, gpu_vram_bad_pages the memory pages that are out of use.
const (
	errorSuffix = "_err_count"
	badPages    = "ras/gpu_vram_bad_pages"
	threshold   = "module/amdgpu/parameters/bad_page_threshold"
)

// errorTypes are the error types in BLOCK_err_count.
var errorTypes = map[string]string{"ue": "uncorrected", "ce": "corrected", "de": "deferred"}

// parseErrors parses "ue: 0\nce: 3\n", since 6.9 with a line for deferred errors.
func parseErrors(block string, b []byte) []model.GPUErrors {
	var errs []model.GPUErrors
	for line := range bytes.Lines(b) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		kind, ok := errorTypes[name]
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		same := func(e model.GPUErrors) bool { return e.Type == kind }
		if !ok || err != nil || slices.ContainsFunc(errs, same) {
			continue
		}
		errs = append(errs, model.GPUErrors{Type: kind, Scope: "volatile", Block: block, Count: n})
	}
	return errs
}

// pages counts the pages of gpu_vram_bad_pages: out of use, out of use after the next reset,
// and those that could not be reserved.
type pages struct{ reserved, pending, failed int }

// parsePages parses lines of an address, a size and a letter: 0x00000001 : 0x00001000 : R.
func parsePages(b []byte) pages {
	var p pages
	for line := range bytes.Lines(b) {
		fields := bytes.Split(line, []byte(":"))
		if len(fields) != 3 {
			continue
		}
		switch string(bytes.TrimSpace(fields[2])) {
		case "R":
			p.reserved++
		case "P":
			p.pending++
		case "F":
			p.failed++
		}
	}
	return p
}

// health is the RAS state of a card.
type health struct {
	errors  []model.GPUErrors
	pages   pages
	counted bool // pages is known
	tooMany bool
}

// rasBlocks returns the blocks with error counters.
func rasBlocks(d *directory) []string {
	var blocks []string
	for _, file := range d.Names("ras") {
		if block, ok := strings.CutSuffix(file, errorSuffix); ok && block != "" && len(blocks) < maxBlocks {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

const maxBlocks = 64

// block reads the errors of one block.
func (h *health) block(d *directory, name string) {
	if b, err := d.read("ras/" + name + errorSuffix); err == nil {
		h.errors = append(h.errors, parseErrors(name, b)...)
	}
}

// badPages reads the pages and compares their number with the module's threshold parameter, if
// it is set.
func (h *health) badPages(d *directory, sysfs *directory) {
	b, err := d.read(badPages)
	if err != nil {
		return
	}
	h.pages, h.counted = parsePages(b), true
	limit := sysfs.Number(threshold, 1)
	h.tooMany = h.pages.failed > 0 || limit.Value > 0 && float64(h.pages.reserved+h.pages.pending) >= limit.Value
}

// describe sets the errors and problems of a GPU.
func (h *health) describe(g *model.GPU) {
	g.Errors = h.errors
	if h.errors != nil {
		uncorrected := slices.ContainsFunc(h.errors, func(e model.GPUErrors) bool {
			return e.Type == "uncorrected" && e.Count > 0
		})
		g.Problems = append(g.Problems, model.GPUCondition{Name: model.ProblemECC, Active: uncorrected})
	}
	if h.counted {
		g.RetiredPages = []model.Figure{{Name: "uncorrectable", Value: float64(h.pages.reserved)}}
		g.Problems = append(g.Problems,
			model.GPUCondition{Name: model.ProblemRetirePending, Active: h.pages.pending > 0},
			model.GPUCondition{Name: model.ProblemMemoryBadPages, Active: h.tooMany})
	}
}
