// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

const trainer = "ml/llama-70b-workers-0/trainer"

func TestMain(m *testing.M) {
	code := m.Run()
	endFleet()
	if browser, err := chromium(); err == nil {
		_ = chromedp.Cancel(browser) // ends the browser's process
	}
	os.Exit(code)
}

// first returns the workload of the first row, of whichever table.
const first = `document.querySelector("table.usage tbody:not(.unattributed) th a").textContent`

// TestSearch types into the search field, chooses a namespace and sorts by headings, without a reload.
func TestSearch(t *testing.T) {
	t.Parallel()
	s := serve(t, fakenode.Workloads())
	b := open(t, s.URL, 1280, 900)
	b.visit(s.URL + "/")
	b.do(chromedp.Evaluate[chromedp.Void](`window.here = true`), chromedp.SendKeys(`input[name=q]`, "resnet"))
	b.until("the row that is searched for", first+` === "vision/resnet-sweep-x7f2p/train"`)
	if got := eval[int](b, `document.querySelectorAll(".unattributed tr").length`); got != 2*fakenode.Devices {
		t.Errorf("%d unattributed shares while searching", got)
	}
	b.choose("input[name=q]", "")
	b.choose("select[name=namespace]", "storage")
	b.until("the rows of the namespace", first+` === "storage/dfs-client-8k2lq/client"`)
	b.choose("select[name=namespace]", "")
	b.until("all rows", `document.querySelectorAll("table.usage tbody:not(.unattributed) tr").length > 10`)
	b.do(chromedp.Click(chromedp.CSS(`thead th:nth-child(1) a`)))
	b.until("ascending names", `document.querySelector("thead th").ariaSort === "ascending" && `+first+` === "`+trainer+`"`)
	b.do(chromedp.Click(chromedp.CSS(`thead th:nth-child(1) a`)))
	b.until("descending names", `document.querySelector("thead th").ariaSort === "descending" && `+first+` === "vision/resnet-sweep-x7f2p/train"`)
	if !eval[bool](b, `window.here === true && location.search === "?order=desc&sort=workload"`) {
		t.Errorf("the page was loaded again, or has another address: %s", eval[string](b, `location.href`))
	}
}

// TestVerdict sets a port down and up while the page is open.
func TestVerdict(t *testing.T) {
	t.Parallel()
	s := serve(t, fakenode.Workloads())
	b := open(t, s.URL, 1280, 900)
	b.visit(s.URL + "/")
	const down = `document.querySelector("#verdicts").innerText.includes("RDMAPortDown")`
	if eval[bool](b, down) {
		t.Fatal("a port is down already")
	}
	s.change(func(n *fakenode.Node) { n.Down[2] = true })
	b.until("the verdict", down)
	b.until("the port in the topology", `document.querySelector("#topology").textContent.includes("degraded: port 1 DOWN")`)
	s.change(func(n *fakenode.Node) { n.Down[2] = false })
	b.until("no verdict", `!`+down)
}

// TestLive checks that rates change and that the focus stays.
func TestLive(t *testing.T) {
	t.Parallel()
	s := serve(t, fakenode.Workloads())
	b := open(t, s.URL, 1280, 900)
	b.visit(s.URL + "/")
	b.do(chromedp.Evaluate[chromedp.Void](`window.before = document.querySelector("#live-usage").textContent; document.querySelectorAll("table.usage tbody th a")[1].focus();
		window.focused = document.activeElement.getAttribute("href")`))
	b.until("another text of the table", `document.querySelector("#live-usage").textContent !== window.before`)
	if !eval[bool](b, `document.activeElement.getAttribute("href") === window.focused`) {
		t.Error("the focus moved")
	}
}

// TestDetails opens the views of a workload and of a device by a click.
func TestDetails(t *testing.T) {
	s := serve(t, fakenode.Workloads())
	b := open(t, s.URL, 1280, 900)
	b.visit(s.URL + "/?sort=workload")
	b.do(chromedp.Click(chromedp.CSS(`table.usage tbody th a`)))
	b.until("the view of the workload", `document.querySelector("h1")?.textContent === "`+trainer+`" && document.readyState === "complete"`)
	for _, want := range []string{trainer, "JobSet/llama-70b", "PEERS", "::ffff:10.70.0.1", "Completions of write", "container_rdma_transmit_bytes_total", "RECENT EVENTS", "container.start"} {
		if text := eval[string](b, `document.querySelector("main").innerText`); !strings.Contains(strings.ToLower(text), strings.ToLower(want)) {
			t.Errorf("the view of the workload lacks %q:\n%s", want, text)
		}
	}
	b.do(chromedp.Click(chromedp.CSS(`table.usage tbody td:has(a[href="/device?name=mlx5_0"]) a`)))
	b.until("the view of the device", `location.pathname === "/device" && document.querySelector("h1")?.textContent === "mlx5_0"`)
	b.visit(s.URL + "/device?name=mlx5_3")
	if got := eval[string](b, `document.querySelector("#live-events tbody").innerText`); !strings.Contains(got, "device.link_flap") {
		t.Errorf("the events of the device: %s", got)
	}
}

// TestWithoutScript shows tables and verdicts, sorts and searches in a browser without scripts.
func TestWithoutScript(t *testing.T) {
	s := serve(t, fakenode.Workloads())
	b := open(t, s.URL, 1280, 900)
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(chromedp.Navigate(s.URL+"/"), chromedp.WaitReady("footer"))
	text := run(b, chromedp.Text(`#verdicts`))
	if !strings.Contains(text, "GPUThermalSlowdown") {
		t.Errorf("verdicts: %s", text)
	}
	b.do(chromedp.SendKeys(`input[name=q]`, "4711"), chromedp.Click(`form button`))
	b.do(chromedp.WaitReady(`input[name=q][value="4711"]`), chromedp.WaitVisible(`table.usage`)) // the next page
	text = run(b, chromedp.Text(`#h-hcas + div tbody th`))
	if text != "slurm:4711" {
		t.Errorf("the first row is %q", text)
	}
	b.do(chromedp.Click(`thead th:nth-child(2) a`), chromedp.WaitVisible(`th[aria-sort=ascending]`))
}

// TestHostile visits the pages of workloads whose names try to run code or to load a picture. The tab fails at a dialog
// or a request.
func TestHostile(t *testing.T) {
	hostile := fakenode.Hostile()
	s := serve(t, hostile)
	b := open(t, s.URL, 1280, 900)
	b.visit(s.URL + "/")
	b.until("an update", `document.querySelector("#state").textContent !== (window.state ??= document.querySelector("#state").textContent)`)
	if got := eval[int](b, `document.querySelectorAll("img, iframe, body script, [onerror], [onmouseover]").length`); got != 0 {
		t.Errorf("%d foreign elements", got)
	}
	for _, w := range hostile {
		name := w.Namespace + "/" + w.Pod + "/" + w.Container
		b.visit(s.URL + "/workload?" + url.Values{"name": {name}}.Encode())
		if got := eval[int](b, `document.querySelectorAll("table.usage tbody tr").length`); got != 2 {
			t.Errorf("%q: %d rows, want its HCA and its GPU", name, got)
		}
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("*").forEach((e) => e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true})))`))
	}
	b.visit(s.URL + "/?" + url.Values{"q": {hostile[0].Pod}}.Encode())
	if got := eval[string](b, `document.querySelector("input[name=q]").value`); got != hostile[0].Pod {
		t.Errorf("the search field has %q", got)
	}
}

// contrasts returns texts whose contrast is below WCAG AA: 4.5, or 3 for large text.
const contrasts = `(() => {
	const parse = (c) => { const n = c.match(/[\d.]+/g).map(Number); return {rgb: n.slice(0, 3).map((v) => c.startsWith("color(") ? 255 * v : v), a: n[3] ?? 1}; };
	const light = ({rgb}) => { const [r, g, b] = rgb.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
	const bad = [];
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility()) continue;
		const style = getComputedStyle(e);
		const color = parse(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
		let back = null;
		for (let p = e; p && !back; p = p.parentElement) {
			const c = parse(getComputedStyle(p).backgroundColor);
			if (c.a === 1) back = c;
		}
		if (e.namespaceURI.endsWith("svg")) {
			const box = e.getBBox();
			for (const r of e.closest("svg").querySelectorAll("rect")) {
				const x = +e.getAttribute("x") + (+e.getAttribute("dx") || 0), y = +e.getAttribute("y") + (+e.getAttribute("dy") || 0);
				const [rx, ry, rw, rh] = ["x", "y", "width", "height"].map((n) => +r.getAttribute(n));
				if (x >= rx && x < rx + rw && y >= ry && y < ry + rh) back = parse(getComputedStyle(r).fill);
			}
		}
		const [a, b] = [light(color), light(back)].sort((x, y) => y - x);
		const size = parseFloat(style.fontSize), need = size >= 24 || size >= 18.6 && +style.fontWeight >= 700 ? 3 : 4.5;
		if ((a + .05) / (b + .05) < need) bad.push(e.tagName + "." + e.getAttribute("class") + " " + e.textContent.trim().slice(0, 30) + " " + ((a + .05) / (b + .05)).toFixed(2));
	}
	return bad;
})()`

func views(s *site) []string {
	return []string{s.URL + "/", s.URL + "/workload?" + url.Values{"name": {trainer}}.Encode(), s.URL + "/device?name=mlx5_3"}
}

// TestLook measures contrast, width and size of text, at two widths and in both themes.
func TestLook(t *testing.T) {
	s := serve(t, fakenode.Workloads())
	s.change(func(n *fakenode.Node) { n.Down[6] = true })
	look(t, s.URL, views(s))
}

func look(t *testing.T, site string, views []string) {
	t.Helper()
	for _, width := range []int64{1280, 390} {
		b := open(t, site, width, 900)
		for _, scheme := range []string{"light", "dark"} {
			b.scheme(scheme)
			for _, view := range views {
				b.visit(view)
				back := eval[string](b, `getComputedStyle(document.body).backgroundColor`)
				if dark := strings.HasPrefix(back, "rgb(18,"); dark != (scheme == "dark") {
					t.Errorf("%s %d: the background is %s", scheme, width, back)
				}
				if bad := eval[[]string](b, contrasts); len(bad) > 0 {
					t.Errorf("%s %d %s: too little contrast:\n%s", scheme, width, view, strings.Join(bad, "\n"))
				}
				if wide := eval[int64](b, `document.documentElement.scrollWidth`); wide > width {
					t.Errorf("%d %s is %d wide: %v", width, view, wide, eval[[]string](b,
						`[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll")).map((e) => e.tagName + "." + e.className).slice(0, 8)`))
				}
				small := `[...document.querySelectorAll("main *")].filter((e) => e.textContent.trim() && e.checkVisibility() && !e.closest(".histogram") && parseFloat(getComputedStyle(e).fontSize) < 11).map((e) => e.tagName + " " + getComputedStyle(e).fontSize)`
				if got := eval[[]string](b, small); len(got) > 0 {
					t.Errorf("%d %s: small text: %v", width, view, got[:min(5, len(got))])
				}
			}
		}
	}
}

// TestAccessible looks in the accessibility tree for controls and pictures without a name.
func TestAccessible(t *testing.T) {
	s := serve(t, fakenode.Workloads())
	accessible(t, s.URL, views(s))
}

func accessible(t *testing.T, site string, views []string) {
	t.Helper()
	b := open(t, site, 1280, 900)
	for _, view := range views {
		b.visit(view)
		nodes := call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes
		controls := 0
		for _, n := range nodes {
			role := text(n.Role)
			if n.Ignored || !slices.Contains([]string{"link", "button", "searchbox", "textbox", "combobox", "image", "img", "table", "region", "navigation"}, role) {
				continue
			}
			controls++
			if strings.TrimSpace(text(n.Name)) == "" && role != "table" {
				t.Errorf("%s: a %s without a name", view, role)
			}
		}
		if controls < 8 {
			t.Errorf("%s: only %d controls", view, controls)
		}
		if got := eval[int](b, `document.querySelectorAll("main").length`); got != 1 {
			t.Errorf("%d main landmarks", got)
		}
	}
}

func text(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	return strings.Trim(string(v.Value), `"`)
}

// tabTo presses the tab key until an element has the focus, which must be visible.
func (b *tab) tabTo(selector string) {
	b.Helper()
	for range 200 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if eval[bool](b, fmt.Sprintf(`document.activeElement.matches(%q)`, selector)) {
			if !eval[bool](b, `getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
				b.Errorf("the focus on %s cannot be seen", selector)
			}
			return
		}
	}
	b.Fatalf("the tab key does not get to %s", selector)
}

// TestKeyboard walks through the node page with the tab key, to the views of a workload and a device, and back.
func TestKeyboard(t *testing.T) {
	s := serve(t, fakenode.Workloads())
	b := open(t, s.URL, 1280, 900)
	b.visit(s.URL + "/")
	tabTo := func(selector string) { t.Helper(); b.tabTo(selector) }
	for _, selector := range []string{".skip", "nav a[href='#usage']", "input[name=q]", "select[name=namespace]", "select[name=sort]", "form button", "thead a", "table.usage tbody th a"} {
		tabTo(selector)
	}
	enter := func() { b.do(chromedp.KeyEvent(kb.Enter)) }
	enter()
	b.until("the view of the workload", `location.pathname === "/workload" && document.readyState === "complete"`)
	tabTo("table.usage tbody td a")
	enter()
	b.until("the view of the device", `location.pathname === "/device" && document.readyState === "complete"`)
	tabTo("nav a[href='/']")
	enter()
	b.until("the page of the node", `location.pathname === "/" && document.readyState === "complete"`)
	tabTo(".map a")
}
