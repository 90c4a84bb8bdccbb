// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"reflect"
	"strconv"
)

// metricsDir holds the metric table, in which fields named help are HELP strings. Those that functions put together are
// found in gen/metrics.md, which lists all.
const metricsDir = "pkg/metrics"

// goProse returns the comments of a Go file, the help tags of its fields and, in the metric table, the HELP strings.
func goProse(file string, src []byte) ([]part, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var parts []part
	add := func(pos token.Pos, text string) {
		parts = append(parts, part{fset.Position(pos).Line, text})
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			add(c.Pos(), c.Text)
		}
	}
	metrics := path.Dir(file) == metricsDir
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag != nil {
				add(n.Tag.Pos(), reflect.StructTag(unquote(n.Tag)).Get("help"))
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && metrics && key.Name == "help" {
				literals(n.Value, add)
			}
		}
		return true
	})
	return parts, nil
}

// literals calls add for each string literal of an expression, such as "a" + x + "b".
func literals(e ast.Expr, add func(token.Pos, string)) {
	ast.Inspect(e, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			add(lit.Pos(), unquote(lit))
		}
		return true
	})
}

// unquote returns the value of a string literal that the parser accepted.
func unquote(lit *ast.BasicLit) string {
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return lit.Value
	}
	return s
}
