// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// maxAnswers limits the answers that are made at once: an answer of a large node has several megabytes.
const maxAnswers = 4

// maxWait is how long a request waits for others.
const maxWait = 2 * time.Second

// bodyTimeout is how long a client may take to read an answer.
const bodyTimeout = 10 * time.Second

var errBusy = errors.New("too many answers are being made, or this one takes long: try again")

// Slots limit the answers that are made at once by all handlers that share them.
type Slots chan struct{}

// NewSlots returns slots for maxAnswers answers.
func NewSlots() Slots { return make(Slots, maxAnswers) }

// answerFunc answers a request from the facts of a refresh.
type answerFunc func(w http.ResponseWriter, r *http.Request, known *Known)

// pages makes the answers of all requests.
type pages struct {
	facts   Facts
	slots   Slots
	maxWait time.Duration
}

func newPages(facts Facts, slots Slots) *pages {
	return &pages{facts: facts, slots: slots, maxWait: maxWait}
}

// handler returns a handler. It answers with status 500 if a refresh failed, 503 if the answer is not made in time, and 304 if the client
// has it. It keeps the last answer to a request without a query until the next refresh, for requests with the same path.
func (p *pages) handler(refuse func(http.ResponseWriter, error), answer answerFunc) http.Handler {
	last := keptPage{making: make(chan struct{}, 1)}
	return reads(refuse, func(w http.ResponseWriter, r *http.Request) {
		known := p.facts()
		if known.Err != nil {
			refuse(w, statusError{known.Err, http.StatusInternalServerError})
			return
		}
		made := p.get(r, &known, answer, &last)
		if made == nil {
			w.Header().Set("Retry-After", "1")
			refuse(w, errBusy)
			return
		}
		made.send(w, r)
	})
}

// get returns the kept page, or makes a page in a slot. It returns nil if that was not possible in time.
func (p *pages) get(r *http.Request, known *Known, answer answerFunc, last *keptPage) *page {
	keeps := r.URL.RawQuery == "" && !known.At.IsZero()
	if made := last.since(known.At, r.URL.Path); keeps && made != nil {
		return made
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.maxWait)
	defer cancel()
	if keeps {
		if !enter(ctx, last.making) {
			return nil
		}
		defer func() { <-last.making }()
		if made := last.since(known.At, r.URL.Path); made != nil {
			return made
		}
	}
	if !enter(ctx, p.slots) {
		return nil
	}
	defer func() { <-p.slots }()
	made := newPage(r, known, answer)
	if keeps {
		last.page.Store(made)
	}
	return made
}

// enter takes a place, and reports whether a place became free in time.
func enter(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// keptPage keeps an answer until the next refresh.
type keptPage struct {
	making chan struct{} // taken by the request that makes the page: the others wait here, without a slot
	page   atomic.Pointer[page]
}

// since returns the page of a path, of this or a later refresh, or nil.
func (k *keptPage) since(at time.Time, path string) *page {
	if made := k.page.Load(); made != nil && !made.at.Before(at) && made.path == path {
		return made
	}
	return nil
}

// page is a complete answer. It is also the http.ResponseWriter that records the answer.
type page struct {
	at     time.Time
	path   string
	status int
	header http.Header
	body   bytes.Buffer
	tag    string
}

func newPage(r *http.Request, known *Known, answer answerFunc) *page {
	made := &page{at: known.At, path: r.URL.Path, status: http.StatusOK, header: http.Header{}}
	answer(made, r, known)
	sum := fnv.New64a()
	_, _ = sum.Write(made.body.Bytes())
	made.tag = fmt.Sprintf("\"%016x\"", sum.Sum64())
	return made
}

func (p *page) Header() http.Header               { return p.header }
func (p *page) WriteHeader(status int)            { p.status = status }
func (p *page) Write(b []byte) (n int, err error) { return p.body.Write(b) }

// send sends the page, or nothing if the client has it.
func (p *page) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if p.status == http.StatusOK {
		h.Set("ETag", p.tag)
		if hasTag(r.Header.Get("If-None-Match"), p.tag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	maps.Copy(h, p.header)
	h.Set("Content-Length", strconv.Itoa(p.body.Len()))
	// A client that does not read must not keep the connection.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTimeout))
	w.WriteHeader(p.status)
	_, _ = w.Write(p.body.Bytes()) // the client may have gone
}

// hasTag reports whether an If-None-Match names a tag.
func hasTag(header, tag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
			return true
		}
	}
	return false
}
