// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"

	"github.com/accelscope/accelscope/pkg/model"
)

// fabricDOT answers /api/v1/fabric.dot: the fabric for Graphviz. It answers with the same errors as /api/v1/fabric; the
// error of a partial answer is in a comment of the graph.
func fabricDOT(w http.ResponseWriter, _ *http.Request, known *Known) {
	f, missing := known.Facts.Fabric, known.missing(known.Facts.Fabric != nil, "fabric")
	if f == nil {
		refuse(w, cmp.Or[error](missing, errNoFabric))
		return
	}
	w.Header().Set("Content-Type", "text/vnd.graphviz")
	_, _ = w.Write(dot(f, missing)) // the client may have gone
}

// dot writes a fabric in the DOT language. Switches are boxes, red if their counters could
// not be read. The label of a link has its width and speed and the ports at its ends; a
// degraded link is red.
func dot(f *model.Fabric, missing error) []byte {
	var out bytes.Buffer
	if missing != nil {
		fmt.Fprintf(&out, "// partial: %s\n", oneLine(missing.Error()))
	}
	out.WriteString("graph fabric {\n  node [shape=ellipse];\n")
	for i := range f.Nodes {
		n := &f.Nodes[i]
		shape := map[string]string{model.FabricSwitch: ", shape=box", model.FabricRouter: ", shape=diamond"}[n.Kind]
		if n.Error != "" && n.Kind == model.FabricSwitch {
			shape += ", color=red"
		}
		fmt.Fprintf(&out, "  %s [label=%s%s];\n", quoted(n.GUID), quoted(cmp.Or(n.Name, n.GUID)), shape)
	}
	for _, l := range f.Links() {
		label, color := l.Speed, ""
		if l.Width > 0 {
			label = strings.TrimSpace(fmt.Sprintf("%dx %s", l.Width, l.Speed))
		}
		if l.Narrow != nil && *l.Narrow || l.Slow != nil && *l.Slow {
			color = ", color=red, fontcolor=red, penwidth=2"
		}
		fmt.Fprintf(&out, "  %s -- %s [label=%s, taillabel=%s, headlabel=%s%s];\n", quoted(l.A.GUID), quoted(l.B.GUID),
			quoted(label), quoted(strconv.Itoa(l.A.Port)), quoted(strconv.Itoa(l.B.Port)), color)
	}
	out.WriteString("}\n")
	return out.Bytes()
}

// quoted quotes a text so that Graphviz shows it unchanged. Graphviz interprets escapes (\N
// is the name of the node) and HTML entities in labels, but no HTML tags in quoted text.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `&`, `&amp;`).Replace(oneLine(s)) + `"`
}

// oneLine replaces characters that are not printable or not valid.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
