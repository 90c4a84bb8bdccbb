// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestVendors compares the vendors in openapi.yaml with the rows that have a source.
func TestVendors(t *testing.T) {
	var file struct {
		Components struct {
			Schemas struct {
				Vendor struct {
					Enum []model.Vendor `yaml:"enum"`
				} `yaml:"Vendor"`
			} `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(description, &file); err != nil {
		t.Fatal(err)
	}
	var sources []model.Vendor
	for _, v := range model.GPUVendors {
		if v.Source != "" {
			sources = append(sources, v.Vendor)
		}
	}
	described := file.Components.Schemas.Vendor.Enum
	slices.Sort(described)
	slices.Sort(sources)
	if !slices.Equal(described, sources) {
		t.Errorf("openapi.yaml has the vendors %v, there are sources for %v", described, sources)
	}
}
