// SPDX-License-Identifier: Apache-2.0

// Package openapi compares responses with the OpenAPI description of the REST API.
package openapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

func init() {
	for _, text := range []string{"text/html", "text/css", "text/javascript", "image/svg+xml", "text/vnd.graphviz", "application/openmetrics-text"} {
		openapi3filter.RegisterBodyDecoder(text, openapi3filter.PlainBodyDecoder)
	}
	openapi3filter.RegisterBodyDecoder("application/vnd.google.protobuf", openapi3filter.FileBodyDecoder)
}

// Description is the OpenAPI description of a server.
type Description struct{ doc *openapi3.T }

// Load parses a description and validates it.
func Load(t testing.TB, text []byte) Description {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err == nil {
		err = doc.Validate(t.Context())
	}
	if err != nil {
		t.Fatalf("the OpenAPI description: %v", err)
	}
	return Description{doc}
}

// Paths returns the described paths, sorted.
func (d Description) Paths() []string {
	paths := d.doc.Paths.Keys()
	slices.Sort(paths)
	return paths
}

// Check returns how a response to a GET of path differs from its description, which also covers rejected methods.
func (d Description) Check(t testing.TB, path string, status int, header http.Header, body []byte) error {
	t.Helper()
	item := d.doc.Paths.Value(path)
	if item == nil || item.Get == nil {
		return fmt.Errorf("%s is not described", path)
	}
	return openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil),
			Route:   &routers.Route{Spec: d.doc, Path: path, PathItem: item, Method: http.MethodGet, Operation: item.Get},
		},
		Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
}
