// SPDX-License-Identifier: Apache-2.0
// Keeps a page up to date: requests the page again and replaces the parts that changed. Without it, pages are complete but still.
(() => {
  "use strict";
  const interval = 5000;
  let timer = 0, running = null;

  // apply replaces the parts of the page that differ, and keeps the focus and the scroll positions.
  function apply(html) {
    const next = new DOMParser().parseFromString(html, "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(old.id);
      if (!fresh || fresh.isEqualNode(old)) continue;
      const focused = old.contains(document.activeElement) ? path(old, document.activeElement) : null;
      const scrolled = [...old.querySelectorAll(".scroll")].map((e) => [e.scrollLeft, e.scrollTop]);
      const put = document.adoptNode(fresh);
      old.replaceWith(put);
      put.querySelectorAll(".scroll").forEach((e, i) => { if (scrolled[i]) [e.scrollLeft, e.scrollTop] = scrolled[i]; });
      if (focused) find(put, focused)?.focus({preventScroll: true});
    }
    copyButtons();
  }

  // path and find name an element by its target, or by its place among equal ones.
  function path(root, e) {
    const href = e.getAttribute("href");
    return {tag: e.tagName, href, index: [...root.querySelectorAll(e.tagName)].indexOf(e)};
  }
  function find(root, p) {
    const all = [...root.querySelectorAll(p.tag)];
    return all.find((e) => p.href && e.getAttribute("href") === p.href) || all[p.index];
  }

  async function refresh() {
    clearTimeout(timer);
    running?.abort();
    const mine = running = new AbortController();
    try {
      const answer = await fetch(location.pathname + location.search, {signal: mine.signal, headers: {Accept: "text/html"}});
      // A page of what Prometheus did not answer has another status, and names the problem.
      const page = answer.headers.get("Content-Type")?.startsWith("text/html");
      if (page) apply(await answer.text());
      document.body.classList.toggle("stale", !page);
    } catch (e) {
      if (e.name === "AbortError") return;
      document.body.classList.add("stale");
    }
    if (!document.hidden) timer = setTimeout(refresh, interval);
  }

  // The form and the headings of the table change the address and refresh, instead of loading the page.
  function go(query) {
    const text = query.toString();
    history.replaceState(null, "", text ? "?" + text : location.pathname);
    refresh();
  }
  const form = document.getElementById("filter");
  if (form) {
    const submit = () => {
      const query = new URLSearchParams(new FormData(form));
      for (const [name, value] of [...query]) if (!value) query.delete(name);
      go(query);
    };
    let typing = 0;
    form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(submit, 200); });
    form.addEventListener("submit", (e) => { e.preventDefault(); clearTimeout(typing); submit(); });
  }
  document.addEventListener("click", (e) => {
    const link = e.target.closest("table.usage thead a, #live-usage .note a");
    if (!link || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
    e.preventDefault();
    const query = new URL(link.href).searchParams;
    if (form) form.elements.sort.value = query.get("sort") || "";
    go(query);
  });

  // Queries get a button that copies them.
  function copyButtons() {
    if (!navigator.clipboard) return;
    for (const code of document.querySelectorAll("code[data-copy]:not(.ready)")) {
      code.classList.add("ready");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "copy";
      button.setAttribute("aria-label", "copy " + code.textContent);
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      });
      code.after(button);
    }
  }

  copyButtons();
  timer = setTimeout(refresh, interval);
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) refresh();
  });
})();
