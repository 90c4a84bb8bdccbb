// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
)

// ask sends a GET to a handler.
func ask(h http.Handler, target, tag string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	if tag != "" {
		r.Header.Set("If-None-Match", tag)
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	return answer
}

// TestPagesAreKept: an answer is made once per refresh for all clients; with a query, each time.
func TestPagesAreKept(t *testing.T) {
	var made atomic.Int64
	k := Known{At: time.Unix(1, 0)}
	h := newPages(func() Known { return k }, NewSlots()).handler(fail, func(w http.ResponseWriter, _ *http.Request, _ *Known) {
		write(w, http.StatusOK, made.Add(1))
	})
	var all sync.WaitGroup
	for range 5 * maxAnswers {
		all.Go(func() {
			if a := ask(h, "/x", ""); a.Code != 200 || a.Body.String() != "1" {
				t.Errorf("%d %s", a.Code, a.Body)
			}
		})
	}
	all.Wait()
	first := ask(h, "/x", "")
	tag := first.Header().Get("ETag")
	if tag == "" || first.Header().Get("Content-Length") != "1" || first.Body.String() != "1" {
		t.Errorf("%+v", first)
	}
	if a := ask(h, "/x?workload=a", ""); a.Body.String() != "2" {
		t.Errorf("with a query: %s", a.Body)
	}
	for _, header := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
		if a := ask(h, "/x", header); a.Code != http.StatusNotModified || a.Body.Len() != 0 || a.Header().Get("ETag") != tag {
			t.Errorf("If-None-Match: %s: %d %q", header, a.Code, a.Body)
		}
	}
	k.At = time.Unix(2, 0)
	if a := ask(h, "/x", tag); a.Code != 200 || a.Body.String() != "3" || a.Header().Get("ETag") == tag {
		t.Errorf("after another refresh: %d %s", a.Code, a.Body)
	}
}

// TestAnswersAreLimited: answers beyond the limit are refused, and made afterwards. Kept answers are not limited.
// Handlers that share slots share the limit.
func TestAnswersAreLimited(t *testing.T) {
	entered, open := make(chan struct{}), make(chan struct{})
	facts := func() Known { return Known{At: time.Unix(1, 0)} }
	slots := NewSlots()
	p := newPages(facts, slots)
	p.maxWait = 10 * time.Millisecond
	kept := p.handler(fail, func(w http.ResponseWriter, _ *http.Request, _ *Known) { write(w, http.StatusOK, "kept") })
	slow := p.handler(refuse, func(w http.ResponseWriter, _ *http.Request, _ *Known) { write(w, http.StatusOK, "slow") })
	peers := Handlers(facts, func() ([]attribution.PeerShare, error) {
		entered <- struct{}{}
		<-open
		return nil, nil
	}, slots)["/api/v1/peers"]
	page := Kept(facts, slots, refuse)(func(http.ResponseWriter, *http.Request, *Known) {
		entered <- struct{}{}
		<-open
	})
	if a := ask(kept, "/kept", ""); a.Code != 200 {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	var all sync.WaitGroup
	for i := range maxAnswers {
		all.Go(func() { ask([]http.Handler{peers, page}[i%2], "/?each", "") })
	}
	for range maxAnswers {
		<-entered
	}
	if a := ask(slow, "/slow", ""); a.Code != 503 || !strings.Contains(a.Body.String(), "too many") || a.Header().Get("Retry-After") == "" {
		t.Errorf("one too many: %d %s", a.Code, a.Body)
	}
	if a := ask(kept, "/kept", ""); a.Code != 200 {
		t.Errorf("what is kept: %d %s", a.Code, a.Body)
	}
	close(open)
	all.Wait()
	if a := ask(slow, "/slow", ""); a.Code != 200 {
		t.Errorf("afterwards: %d %s", a.Code, a.Body)
	}
}

// TestWaitingTakesNoSlot: requests that wait for an answer that another request makes take no slot.
func TestWaitingTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPages(func() Known { return Known{At: time.Unix(1, 0)} }, NewSlots())
		open := make(chan struct{})
		slow := p.handler(fail, func(http.ResponseWriter, *http.Request, *Known) { <-open })
		other := p.handler(fail, func(w http.ResponseWriter, _ *http.Request, _ *Known) { write(w, http.StatusOK, "other") })
		codes := make(chan int, 2*maxAnswers)
		for range 2 * maxAnswers {
			go func() { codes <- ask(slow, "/slow", "").Code }()
		}
		synctest.Wait()
		if len(p.slots) != 1 {
			t.Errorf("%d slots are taken for one answer", len(p.slots))
		}
		if a := ask(other, "/other", ""); a.Code != http.StatusOK {
			t.Errorf("another path: %d %s", a.Code, a.Body)
		}
		time.Sleep(maxWait + time.Second)
		close(open)
		got := map[int]int{}
		for range 2 * maxAnswers {
			got[<-codes]++
		}
		if got[http.StatusOK] != 1 || got[http.StatusServiceUnavailable] != 2*maxAnswers-1 {
			t.Errorf("answers by status: %v", got)
		}
	})
}
