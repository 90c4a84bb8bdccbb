// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
)

func readAll(text string) (got []string, warnings []string, err error) {
	warnings, err = readAnswer(iotest.OneByteReader(strings.NewReader(text)), func(s *series) error {
		value := "no value"
		if s.Value != nil {
			value = s.Value.Value.String()
		}
		for _, v := range s.Values {
			value += " " + v.String()
		}
		got = append(got, fmt.Sprint(s.Metric, " ", value))
		return nil
	})
	return got, warnings, err
}

// TestAnswer: answers with fields in any order, and texts that are not answers.
func TestAnswer(t *testing.T) {
	const a, b = `{"metric":{"x":"1","y":"ä\"\u0000"},"value":[1.5,"2"]}`, `{"metric":{},"value":[1,"NaN"]}`
	for _, c := range []struct {
		text string
		want []string
	}{
		{`{"status":"success","data":{"resultType":"vector","result":[` + a + `,` + b + `]}}`, []string{"map[x:1 y:ä\"\x00] 2", "map[] NaN"}},
		{`{"data":{"stats":{"a":[1]},"result":[` + b + `,` + a + `],"resultType":"vector"},"infos":["i"],"status":"success"}`, []string{"map[] NaN", "map[x:1 y:ä\"\x00] 2"}},
		{`{"status":"success","data":{"resultType":"vector","result":[{"metric":{"x":"1"},"histogram":[1,{}]}]}}`, []string{"map[x:1] no value"}},
		{`{"status":"success","data":{"resultType":"vector","result":[]}}`, nil},
		{
			`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"x":"1"},"values":[[1,"2"],[2.5,"NaN"]]},{"metric":{"x":"2"}}]}}`,
			[]string{"map[x:1] no value 2 @[1] NaN @[2.5]", "map[x:2] no value"},
		},
	} {
		got, warnings, err := readAll(c.text)
		if diff := gocmp.Diff(c.want, got); diff != "" || err != nil || len(warnings) > 0 {
			t.Errorf("%s: %s %v %v", c.text, diff, warnings, err)
		}
	}
	if _, warnings, err := readAll(`{"status":"success","data":{"resultType":"vector","result":[]},"warnings":["w"]}`); err != nil || len(warnings) != 1 {
		t.Errorf("warnings: %v %v", warnings, err)
	}
	long := `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"x":"` + strings.Repeat("x", maxSeries) + `"},"value":[1,"1"]}]}}`
	labels := map[string]string{}
	for i := range maxLabels + 1 {
		labels[fmt.Sprint("l", i)] = ""
	}
	many, err := json.Marshal(labels)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]error{
		``: errNoVector, `{}`: errNoVector, `[]`: errNoVector, `<html>`: errNoVector, `null`: errNoVector, `{"status":"success"}`: errNoVector,
		`{"status":"error","data":{"resultType":"vector","result":[]}}`:                                  errNoVector,
		`{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`:                           errNoVector,
		`{"status":"success","data":{"result":[1,"1"],"resultType":"scalar"}}`:                           errNoVector,
		`{"status":"success","data":{"resultType":"vector","result":null}}`:                              errNoVector,
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":`:                         nil, // it ends too early
		`{"status":"success","data":{"resultType":"vector","result":[` + a + `]`:                         nil,
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":` + string(many) + `}]}}`: errTooManyLabels,
		long: errTooLarge,
	} {
		if _, _, err := readAll(text); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%.80s: %v, want %v", text, err, want)
		}
	}
	failed := errors.New("it does not fit")
	_, err = readAnswer(strings.NewReader(`{"data":{"result":[`+a+`]}}`), func(*series) error { return failed })
	if !errors.Is(err, failed) {
		t.Errorf("the error of a series is %v", err)
	}
}

// FuzzAnswer: for any text, the series are equal to encoding/json's.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"2"]}]}}`)
	f.Add(`{"data":{"result":[],"resultType":"vector"},"status":"success","warnings":["w"]}`)
	f.Add(`{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"2"]]}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		_, err := readAnswer(strings.NewReader(text), func(*series) error { n++; return nil })
		if err != nil {
			return
		}
		var want struct {
			Data struct{ Result []json.RawMessage }
		}
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&want); err == nil && strings.Count(text, `"result"`) == 1 && len(want.Data.Result) != n {
			t.Errorf("%d series, encoding/json has %d", n, len(want.Data.Result))
		}
	})
}

// TestVector: labels of series are kept exactly, and answers share equal labels.
func TestVector(t *testing.T) {
	s := newStore(1 << 20)
	a, b := &vector{in: s, name: "ports"}, &vector{in: s, name: "rail_errors"}
	sets := []map[string]string{
		{}, {"a": "b"}, {"a": "", "b": "a"}, {"ab": ""}, {"a": "\x01b\x00"}, {"a": strings.Repeat("x", 300), "instance": "ä:1"}, {"": "x"},
	}
	for i, set := range sets {
		for _, v := range []*vector{a, b} {
			if err := v.add(set, float64(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, set := range sets {
		got := map[string]string{}
		for _, l := range a.samples[i].labels.pairs {
			got[l.name] = l.value
		}
		if diff := gocmp.Diff(set, got); diff != "" || a.samples[i].value != float64(i) {
			t.Error(diff)
		}
	}
	if len(s.sets) != len(sets) {
		t.Errorf("%d sets of labels are kept of %d", len(s.sets), len(sets))
	}
	if label(a.samples[1], "a") != "b" || label(a.samples[1], "c") != "" {
		t.Error("a label is not found, or one that is not there is")
	}
	a.drop()
	if s.used != b.charged+setsOf(b) || len(s.sets) != len(sets) {
		t.Errorf("%d bytes are charged after one of two answers was dropped", s.used)
	}
	b.drop()
	if s.used != 0 || len(s.sets) != 0 {
		t.Errorf("%d bytes and %d sets are left", s.used, len(s.sets))
	}
}

func setsOf(v *vector) (bytes int) {
	for _, s := range v.samples {
		bytes += s.labels.bytes()
	}
	return bytes
}

// TestNoPost: a proxy that refuses POST is asked with GET, and the reason of a failure is named.
func TestNoPost(t *testing.T) {
	status, body := http.StatusMethodNotAllowed, ""
	var query string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return
		}
		query = r.URL.Query().Get("query") + r.URL.Query().Get("tenant")
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "vector", "result": model.Vector{}}})
	}))
	defer s.Close()
	p, err := Connect(s.URL+"/prefix/?tenant=a", "")
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error {
		_, err := p.ask(t.Context(), `up{a="&"}`, NewReader(p).now(), func(*series) error { return nil })
		return err
	}
	if err := ask(); err != nil || query != `up{a="&"}a` {
		t.Errorf("%v, asked %q", err, query)
	}
	status, body = http.StatusUnprocessableEntity, `{"status":"error","errorType":"execution","error":"query timed out"}`
	if err := ask(); err == nil || err.Error() != "422 Unprocessable Entity: query timed out" {
		t.Error(err)
	}
	status, body = http.StatusBadGateway, "<html>\n"
	if err := ask(); err == nil || err.Error() != "502 Bad Gateway" {
		t.Error(err)
	}
}

// TestManyMembers: a job that is larger than the table has its first containers only, and the number of the others.
func TestManyMembers(t *testing.T) {
	a := answers{vectors: map[string][]sample{}}
	for i := range maxMembers + 2 {
		id := &labelSet{pairs: []pair{{"container_id", strconv.Itoa(i)}}}
		a.vectors["members"] = append(a.vectors["members"], sample{labels: id})
		a.vectors["member_gpus"] = append(a.vectors["member_gpus"], sample{labels: id, value: 8})
	}
	a.vectors["members_lost"] = []sample{{labels: &labelSet{pairs: []pair{{"container_id", "lost"}}}}}
	if got, omitted := membersOf(&a); len(got) != maxMembers || omitted != 3 {
		t.Errorf("%d members and %d more, want %d and 3", len(got), omitted, maxMembers)
	}
}

// TestLongFailure: the reason of an error is read up to the limit.
func TestLongFailure(t *testing.T) {
	for spaces, want := range map[int]string{0: "500: the reason", maxError: "500"} {
		body := io.NopCloser(strings.NewReader(strings.Repeat(" ", spaces) + `{"status":"error","error":"the reason"}`))
		if got := failure(&http.Response{Status: "500", Body: body}); got.Error() != want {
			t.Errorf("after %d bytes: %q, want %q", spaces, got, want)
		}
	}
}
