// SPDX-License-Identifier: Apache-2.0

// Package pages tests the pages of a node in Chromium, as a person would use them, and takes pictures of them. It is a module of its
// own, for the library that drives the browser.
package pages

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// timeLimit is how long a condition of a page may take. It is for a busy machine; nothing takes as long on an idle one.
const timeLimit = 90 * time.Second

// chromium starts the browser once for all tests of a package.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("chromium is missing: make deps: %w", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-background-networking", true),
		chromedp.WSURLReadTimeout(timeLimit))
	allocated, _ := chromedp.NewExecAllocator(context.Background(), options...) //nolint:fatcontext // of the whole process
	browser, _ := chromedp.NewContext(allocated)
	return browser, chromedp.Do(browser)
})

// tab is a page in the browser. At the end of its test it must have made no request to another host, opened no dialog and logged no
// error.
type tab struct {
	testing.TB
	context.Context

	mu       sync.Mutex
	problems []string
	requests int
}

// open opens a tab of a size that may only make requests to the addresses that begin with site.
func open(t testing.TB, site string, width, height int64) *tab {
	t.Helper()
	browser, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // without a limit: it would limit the tab, too
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(stop)
	b := &tab{TB: t, Context: ctx}
	if err := chromedp.Listen(ctx, func(event any) { b.watch(site, event) }); err != nil {
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 700,
	})
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range b.problems {
			t.Error(p)
		}
		if b.requests == 0 {
			t.Error("the tab made no request: nothing was watched")
		}
	})
	return b
}

// watch notes what a page must not do.
func (b *tab) watch(site string, event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	note := func(format string, args ...any) { b.problems = append(b.problems, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests++
		if !strings.HasPrefix(e.Request.URL, site) && !strings.HasPrefix(e.Request.URL, "about:") {
			note("a request to %s", e.Request.URL)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			note("the browser logs: %s %s", e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		note("the page logs: %s", e.Type)
	case *runtime.EventExceptionThrown:
		note("an exception: %s", e.ExceptionDetails.Text)
	case *page.EventJavascriptDialogOpening:
		note("a dialog: %s", e.Message)
		go func() { _, _ = chromedp.Call(b, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{}) }()
	}
}

// do runs actions.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b, actions...); err != nil {
		b.Fatal(err)
	}
}

// visit loads a page.
func (b *tab) visit(url string) {
	b.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady("footer"))
}

// eval evaluates an expression of JavaScript.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

// exec runs a script.
func (b *tab) exec(script string) {
	b.Helper()
	b.do(chromedp.Evaluate[chromedp.Void](script))
}

// choose sets the value of a field, as a person does who chooses it.
func (b *tab) choose(selector, value string) {
	b.Helper()
	b.exec(fmt.Sprintf(`{const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event("input", {bubbles: true}));}`, selector, value))
}

// run runs an action and returns its result.
func run[T any](b *tab, a chromedp.Action[T]) T {
	b.Helper()
	v, err := chromedp.Run(b, a)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// call runs a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.Helper()
	r, err := chromedp.Call(b, command, params)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// until waits for an expression to be true.
func (b *tab) until(what, expression string) {
	b.Helper()
	for end := time.Now().Add(timeLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if eval[bool](b, "!!("+expression+")") {
			return
		}
	}
	b.Fatalf("not in %v: %s\n%s", timeLimit, what, eval[string](b, "document.querySelector('main').innerText"))
}

// scheme selects the light or the dark theme.
func (b *tab) scheme(name string) {
	b.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}
