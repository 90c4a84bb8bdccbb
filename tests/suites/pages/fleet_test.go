// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// ready waits for the sick GPU's alert and for jobs: the rules have then been evaluated.
func (b *tab) ready(site string) {
	b.Helper()
	b.visit(site + "/")
	b.until("the alert of gpu0022, and jobs", `document.querySelector("#alerts").textContent.includes("GPUUncorrectedECC") &&
		document.querySelector("#jobs").textContent.includes("JobSet/llama-2")`)
}

// TestFleetPage reads the totals, searches, chooses another figure of the heat map, and goes to a job and a node.
func TestFleetPage(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 1280, 900)
	b.ready(site)
	totals := strings.Join(strings.Fields(eval[string](b, `document.querySelector("#totals").innerText`)), " ")
	// In the generator one node does not answer, and each other node has an idle GPU.
	for _, want := range []string{"Nodes 26 1 without an answer", "GPUs 50 50 given, 25 in use, 25 idle, 1 sick", "RDMA ports 50 49 up"} {
		if !strings.Contains(totals, want) {
			t.Errorf("the totals lack %q: %s", want, totals)
		}
	}
	if got := eval[int](b, `document.querySelectorAll("#nodes tbody tr").length`); got != 25 {
		t.Errorf("%d nodes", got)
	}
	b.exec(`window.here = true`)
	b.choose("select[name=heat]", "errors")
	b.until("another heat map", `document.querySelector("#heat").textContent.includes("errors and lost packets")`)
	b.choose("input[name=q]", "946dae0300123450-7")
	b.until("nothing for a text that is no GUID", `document.querySelector("#search").textContent.includes("No workload, GUID or UUID")`)
	b.choose("input[name=q]", "946d:ae03:0012:3451")
	b.until("the HCAs with a GUID", `document.querySelector("#search tbody tr td.mono")?.textContent.startsWith("0x946dae0300123451-")`)
	b.choose("input[name=q]", "gpu-b-13")
	b.until("the GPU with a UUID", `[...document.querySelectorAll("#search tbody tr")].some((r) => r.textContent.includes("GPU-b-13") && r.querySelector("td a").textContent === "gpu0013")`)
	if got := eval[string](b, `document.querySelector("#search tbody th a").getAttribute("href")`); got != "http://gpu0013/device?name=GPU-b-13" {
		t.Errorf("the link to the page of the node is %q", got)
	}
	b.choose("input[name=q]", "idle-1")
	b.until("the job alone", `((rows) => rows.length === 1 && rows[0].innerText.includes("8 on 8 nodes"))(document.querySelectorAll("#jobs tbody tr"))`)
	if !eval[bool](b, `window.here === true`) {
		t.Error("the page was loaded again")
	}
	b.do(chromedp.Click(`#jobs tbody th a`))
	b.until("the members of the job", `location.pathname.startsWith("/job/") && document.readyState === "complete" && document.querySelectorAll("#members tbody tr").length === 8 &&
		document.querySelector("main").innerText.includes("ml/idle-1-")`)
	b.do(chromedp.Click(`#members tbody td a`))
	b.until("the view of the node", `location.pathname === "/node" && document.readyState === "complete" && document.querySelector("main").innerText.includes("mlx5_1")`)
	b.visit(site + "/node?name=gpu0022")
	b.until("the alert of the node", `document.querySelector(".verdicts").textContent.includes("GPUUncorrectedECC")`)
}

// TestThousandNodes shows 1,000 nodes, and a job with a member on each.
func TestThousandNodes(t *testing.T) {
	if os.Getenv("ACCELSCOPE_THOUSAND") == "" {
		t.Skip("needs 4 GiB of memory and ten minutes: make test-thousand")
	}
	const nodes = 1000
	site, err := startFleet(nodes, nodes, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, site, 1280, 900)
	took := func(what, url, shown string) {
		t.Helper()
		b.visit(url)
		b.until(what, shown)
		t.Logf("%s: %.1f s", what, eval[float64](b, `performance.now()`)/1000)
	}
	all := `document.querySelector("#totals").innerText.includes("1000") && document.querySelectorAll("#heat svg").length > 0 &&
		document.querySelector("#jobs").textContent.includes("JobSet/llama-0")`
	took("the page of all nodes, when Prometheus has started", site+"/", all)
	took("the page of all nodes", site+"/", all)
	job := site + "/job/ml/" + b.job("JobSet/llama-0")
	took("the first members of the job", job, `document.querySelectorAll("#members tbody tr").length === 64 && document.querySelectorAll("#members svg.strip").length > 0 &&
		document.querySelector("#members").innerText.includes("64 of 990")`)
	took("all members of the job", job+"?all=1", `document.querySelectorAll("#members tbody tr").length === 990`)
}

// TestFleetWithoutScript searches and shows all tables in a browser without scripts.
func TestFleetWithoutScript(t *testing.T) {
	site := fleetSite(t)
	ready := open(t, site, 1280, 900)
	ready.ready(site)
	b := open(t, site, 1280, 900)
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(chromedp.Navigate(site+"/"), chromedp.WaitReady("footer"))
	for selector, want := range map[string]string{"#alerts": "GPUUncorrectedECC", "#jobs": "llama", "#nodes": "gpu0021", "#heat": "mlx5_1"} {
		if text := run(b, chromedp.Text(selector)); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q: %s", selector, want, text)
		}
	}
	b.do(chromedp.SendKeys(`input[name=q]`, "gpu0017"), chromedp.Click(`form button`), chromedp.WaitVisible(`#search p.note`))
	if text := run(b, chromedp.Text(`#nodes tbody th`)); !strings.Contains(text, "gpu0017") {
		t.Errorf("the first node is %q", text)
	}
}

// TestFleetHostile looks for a workload and a job whose names try to load a picture. The tab fails at a dialog or a
// request.
func TestFleetHostile(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 1280, 900)
	b.ready(site)
	evil := foreign
	b.visit(site + "/?" + url.Values{"q": {evil}}.Encode())
	b.until("the workload", `document.querySelector("#search tbody th")?.textContent.includes("onerror=alert(1)")`)
	if got := eval[int](b, `document.querySelectorAll("img, iframe, body script, [onerror], [onmouseover]").length`); got != 0 {
		t.Errorf("%d foreign elements", got)
	}
	b.exec(`document.querySelectorAll("*").forEach((e) => e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true})))`)
	b.do(chromedp.Click(`#jobs tbody th a`))
	b.until("the members", `location.pathname.startsWith("/job/") && document.readyState === "complete" && document.querySelectorAll("#members tbody tr").length > 0`)
	if got := eval[string](b, `document.querySelector("h1").textContent`); !strings.Contains(got, evil) {
		t.Errorf("the job is %q", got)
	}
}

// TestJobState goes to the job on nodes with a sick GPU and a port that is down: it shows the first alert in one sentence, what is not known,
// strips of the members, the member on the alert's node first, and queries, on a phone, in print and without a script.
func TestJobState(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 390, 844)
	b.ready(site)
	b.visit(site + "/job/ml/" + b.job("JobSet/llama-2"))
	b.until("the state, members and strips", `document.querySelector("[aria-labelledby=h-state] b").textContent.startsWith(document.querySelector("#events .name").textContent + " fires for gpu") &&
		document.querySelector("#events").textContent.includes("GPUUncorrectedECC") && document.querySelectorAll("#members svg.strip").length === 16 &&
		document.querySelector("#members svg.strip:last-child path") && document.querySelector("[aria-labelledby=h-state] .note").textContent.includes("not known: joules, ")`)
	state := eval[string](b, `document.querySelector("[aria-labelledby=h-state] b").textContent`)
	if got := eval[string](b, `document.querySelector("#members tbody td a").textContent`); !strings.Contains(state, " "+got) {
		t.Errorf("the first member is on %s: %s", got, state)
	}
	if got := eval[int](b, `new Set([...document.querySelectorAll("#members .legend rect")].map((r) => getComputedStyle(r).fill)).size`); got != 5 {
		t.Errorf("the legend has %d colors, want 5", got)
	}
	if got := eval[int](b, `document.querySelectorAll("#figures tbody tr:not(:has(code))").length`); got != 0 {
		t.Errorf("%d figures have no query", got)
	}
	job := eval[string](b, `location.href`)
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
	if wide := eval[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
		t.Errorf("%d pixels are cut in print", wide)
	}
	still := open(t, site, 1280, 900)
	call(still, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	still.do(chromedp.Navigate(job), chromedp.WaitReady("footer"))
	for selector, want := range map[string]string{"[aria-labelledby=h-state]": " fires for gpu00", "#members": "gpu0022", "#figures": "job_name="} {
		if text := run(still, chromedp.Text(selector)); !strings.Contains(text, want) {
			t.Errorf("without a script %s lacks %q: %s", selector, want, text)
		}
	}
}

// TestJobUnknown goes to a job without collectives: what it launches is not known.
func TestJobUnknown(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 1280, 900)
	b.ready(site)
	b.visit(site + "/job/ml/" + b.job("Job/idle-1"))
	b.until("launches are not known", `document.querySelector("[aria-labelledby=h-state]").textContent.includes("launches of collectives of 8 members")`)
}

// TestJobCulprit goes to the job whose ranks wait for a rank on gpu0004: its member is named, and listed first.
func TestJobCulprit(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 1280, 900)
	b.ready(site)
	b.visit(site + "/job/ml/" + b.job("JobSet/llama-0"))
	b.until("the member and its alert", `/^The job waits for ml\/llama-0-\d+-4\/main on gpu0004, which is 3 launches behind and launched last \d+m\d+s ago\.$/.test(
		document.querySelector("[aria-labelledby=h-state] b").textContent) && document.querySelector("#members tbody td a").textContent === "gpu0004"`)
}

// job returns the name of a job on the page of all nodes.
func (b *tab) job(part string) string {
	b.Helper()
	return eval[string](b, `[...document.querySelectorAll("#jobs tbody th a")].find((a) => a.textContent.includes("`+part+`")).textContent.split("/")[2]`)
}

func fleetViews(b *tab, site string) []string {
	b.Helper()
	b.ready(site)
	return []string{site + "/?q=gpu00", site + "/?heat=errors", site + "/node?name=gpu0022", eval[string](b, `document.querySelector("#jobs tbody th a").href`)}
}

// TestFleetLook measures contrast, width and size of text, at two widths and in both themes.
func TestFleetLook(t *testing.T) {
	site := fleetSite(t)
	look(t, site, fleetViews(open(t, site, 1280, 900), site))
}

// TestFleetAccessible looks for controls and pictures without a name.
func TestFleetAccessible(t *testing.T) {
	site := fleetSite(t)
	accessible(t, site, fleetViews(open(t, site, 1280, 900), site))
}

// TestFleetKeyboard walks through the page with the tab key, to a node and back.
func TestFleetKeyboard(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 1280, 900)
	b.ready(site)
	for _, selector := range []string{".skip", "nav a[href='#jobs']", "input[name=q]", "select[name=heat]", "form button", ".verdicts a", "svg.heat a"} {
		b.tabTo(selector)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the view of the node", `location.pathname === "/node" && document.readyState === "complete"`)
	b.tabTo("nav a[href='/']")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the page of all nodes", `location.pathname === "/" && document.readyState === "complete"`)
	for _, selector := range []string{"#jobs tbody th a", "#nodes tbody th a"} {
		b.tabTo(selector)
	}
}

// TestJobKeyboard goes to a job, through its members, to a member's node, and back to all nodes, with the keyboard
// alone.
func TestJobKeyboard(t *testing.T) {
	site := fleetSite(t)
	b := open(t, site, 1280, 900)
	b.ready(site)
	enter := func() { b.do(chromedp.KeyEvent(kb.Enter)) }
	b.tabTo("#jobs tbody th a")
	job := eval[string](b, `document.activeElement.textContent`)
	enter()
	b.until("the view of the job", `location.pathname.startsWith("/job/") && document.readyState === "complete"`)
	if got := eval[string](b, `document.querySelector("h1").textContent`); got != job {
		t.Errorf("the view is that of %q, and the focus was on %q", got, job)
	}
	b.tabTo(".skip")
	enter()
	b.until("the main part", `location.hash === "#main"`)
	// The arrow keys scroll the tables.
	for _, table := range []string{"h-job", "h-members"} {
		b.tabTo(`.scroll[aria-labelledby=` + table + `]`)
	}
	member := `#members tbody`
	b.tabTo(member + ` th a`) // to the node's page, which is on another host
	if got := eval[string](b, `document.activeElement.href`); !strings.HasPrefix(got, "http://gpu") {
		t.Errorf("the link of the member is %q", got)
	}
	b.tabTo(member + ` td a`)
	node := eval[string](b, `document.activeElement.textContent`)
	enter()
	b.until("the view of the node", `location.pathname === "/node" && document.readyState === "complete"`)
	if got := eval[string](b, `document.querySelector("h1").textContent`); got != node {
		t.Errorf("the view is that of %q, and the focus was on %q", got, node)
	}
	b.exec(`history.back()`)
	b.until("the view of the job again", `location.pathname.startsWith("/job/") && document.readyState === "complete"`)
	b.tabTo("nav a[href='/']")
	enter()
	b.until("the page of all nodes", `location.pathname === "/" && document.readyState === "complete"`)
}
