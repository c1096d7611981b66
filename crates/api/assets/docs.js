// The script of the API reference. The page can be read without it; with it come search, copy
// buttons, and test requests. An API key is kept in memory only, and sent to this service only.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  // An element with properties; names in quotes are attributes.
  const make = (name, properties = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) /^role$|-/.test(key) ? made.setAttribute(key, value) : (made[key] = value);
    made.append(...children);
    return made;
  };
  const typing = (at) => at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName);

  // Commands that work when they are pasted.
  for (const origin of all("[data-origin]")) origin.textContent = location.origin;

  // Search.
  const nav = document.getElementById("contents");
  const input = document.getElementById("search");
  const results = document.getElementById("results");
  const groups = document.getElementById("groups");
  const found = document.getElementById("found");
  const RESULTS_MAX = 40;
  input.parentElement.hidden = false;
  let index;
  const entry = (target, title, detail, method, text) => ({ target, title, detail, method, name: `${title} ${detail} ${target.replaceAll("_", " ")}`.toLowerCase(), text: text.toLowerCase() });
  // Without the errors, which are much the same for every operation.
  const description = (at) => all(".ref-text > :not(.ref-errors)", at).map((part) => part.textContent).join(" ");
  const buildIndex = () => [
    ...all("article[data-path]").map((at) => entry(at.id, at.querySelector("h3").firstChild.textContent, at.dataset.path, at.dataset.method, description(at))),
    ...all("[data-code]").map((at) => entry(at.id, at.dataset.code, "error", "", at.textContent)),
    ...all("article[id^=schema-]").map((at) => entry(at.id, at.querySelector("h3").firstChild.textContent, "object", "", at.textContent)),
  ];
  // Every word must occur. Names count more than text, and the start of a name counts most.
  const rank = (one, words) => {
    let sum = 0;
    for (const word of words) {
      const at = one.name.indexOf(word);
      if (at >= 0) sum += at === 0 ? 4 : /[a-z0-9]/.test(one.name[at - 1]) ? 2 : 3;
      else if (one.text.includes(word)) sum += 1;
      else return 0;
    }
    return sum + (one.method ? 0.5 : 0);
  };
  const search = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    results.hidden = !words.length;
    groups.hidden = !!words.length;
    if (!words.length) return void (found.textContent = "");
    index ??= buildIndex();
    const ranked = index.map((one) => [rank(one, words), one]).filter(([sum]) => sum > 0);
    ranked.sort(([one], [other]) => other - one);
    results.replaceChildren(...ranked.slice(0, RESULTS_MAX).map(([, one]) => {
      const link = make("a", { href: `#${one.target}` }, make("span", { textContent: one.title }));
      if (one.method) link.append(make("span", { className: `ref-method is-${one.method}`, textContent: one.method }));
      link.append(make("code", { textContent: one.detail }));
      return make("li", {}, link);
    }));
    if (!ranked.length) results.append(make("li", { className: "ref-none", textContent: "No results." }));
    found.textContent = ranked.length === 1 ? "1 result" : `${ranked.length} results`;
  };
  const clear = () => ((input.value = ""), search());
  input.addEventListener("input", search);
  nav.addEventListener("keydown", (event) => {
    const links = all("a", results.hidden ? groups : results);
    const here = links.indexOf(document.activeElement);
    if (event.key === "ArrowDown") (links[here + 1] ?? links[here])?.focus();
    else if (event.key === "ArrowUp") (here > 0 ? links[here - 1] : input).focus();
    else if (event.key === "Enter" && event.target === input && !results.hidden) links[0]?.click();
    else if (event.key === "Escape") {
      if (input.value) clear(), input.focus();
      else if (location.hash === "#contents") history.back();
      else document.activeElement.blur();
    } else return;
    event.preventDefault();
  });
  results.addEventListener("click", (event) => {
    if (event.target.closest("a")) clear();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || confirmation.open) return;
    event.preventDefault();
    const focus = () => (input.focus(), input.select());
    if (getComputedStyle(nav).display !== "none") return focus();
    // On a narrow screen the contents are shown only while they are the target.
    addEventListener("hashchange", focus, { once: true });
    location.hash = "contents";
  });
  // Closing the contents returns to where the reader was.
  document.querySelector(".ref-close").addEventListener("click", (event) => {
    event.preventDefault();
    history.back();
  });

  // Mark the section that is being read.
  const links = new Map(all("a", groups).map((link) => [link.hash.slice(1), link]));
  let current;
  const mark = (id) => {
    const link = links.get(id.startsWith("schema-") ? "schemas" : id.startsWith("problem-") ? "problems" : id);
    if (!link || link === current) return;
    current?.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    current = link;
    const [box, within] = [link.getBoundingClientRect(), nav.getBoundingClientRect()];
    if (nav.contains(document.activeElement)) return;
    if (box.top < within.top + 60 || box.bottom > within.bottom) nav.scrollTop += box.top - within.top - within.height / 3;
  };
  const watch = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting) mark(one.target.id || "main");
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const at of all("main h2[id], main h3[id], main article[id], .ref-intro")) watch.observe(at);

  // Copy buttons, and links to operations.
  const copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without HTTPS there is no clipboard, but a selection can be copied.
      const area = make("textarea", { value: text, readOnly: true, className: "sr" });
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };
  const addCopyButton = (block) => {
    const button = make("button", { type: "button", textContent: "Copy" });
    button.addEventListener("click", () => copy(block.querySelector("pre").textContent, button));
    let actions = block.querySelector(".actions");
    if (!actions) block.querySelector(".ref-caption").append((actions = make("span", { className: "actions" })));
    actions.append(button);
    return button;
  };
  for (const block of all(".ref-block")) {
    const label = block.querySelector("pre").getAttribute("aria-label");
    addCopyButton(block).setAttribute("aria-description", label);
  }
  for (const article of all("article[id]")) {
    const title = article.querySelector("h3");
    title.append(make("a", { className: "ref-anchor", href: `#${article.id}`, textContent: "#", "aria-label": `Link to ${title.textContent}` }));
  }

  // Test requests.
  const confirmation = document.getElementById("confirm");
  const RESPONSE_BYTES_MAX = 256 * 1024;
  const TIME_MAX = 30000;
  let key = "";
  addEventListener("pagehide", () => {
    key = "";
    for (const field of all("input[data-secret]")) field.value = "";
  });

  const confirmed = (method, path) => new Promise((done) => {
    const badge = document.getElementById("confirm-method");
    badge.textContent = method;
    badge.className = `ref-method is-${method.toLowerCase()}`;
    document.getElementById("confirm-path").textContent = path;
    confirmation.returnValue = "cancel";
    confirmation.addEventListener("close", () => done(confirmation.returnValue === "send"), { once: true });
    confirmation.showModal();
  });

  // At most RESPONSE_BYTES_MAX of a response.
  const read = async (response) => {
    const reader = response.body?.getReader();
    const decoder = new TextDecoder();
    let [text, size] = ["", 0];
    while (reader) {
      const { done, value } = await reader.read();
      if (done) return { text: text + decoder.decode(), truncated: false };
      const room = RESPONSE_BYTES_MAX - size;
      text += decoder.decode(value.subarray(0, room), { stream: true });
      size += value.length;
      if (size > RESPONSE_BYTES_MAX) {
        await reader.cancel();
        return { text, truncated: true };
      }
    }
    return { text, truncated: false };
  };

  const labeled = (name, note, field) => make("label", {}, make("span", { textContent: name }), field, ...(note ? [make("small", { textContent: note })] : []));

  const buildForm = (article) => {
    const { method, path } = article.dataset;
    const form = make("form", { className: "ref-try", noValidate: true });
    const secret = make("input", { type: "password", autocomplete: "off", spellcheck: false, placeholder: "fmk_…" });
    secret.dataset.secret = "";
    secret.addEventListener("input", () => (key = secret.value.trim()));
    if ("key" in article.dataset) form.append(labeled("API key", "Kept in the memory of this page until you leave it, and sent to this service only.", secret));
    const optional = make("div", { className: "ref-optionals" });
    const fields = all("[data-parameter]", article).map((at) => {
      const { parameter, example } = at.dataset;
      const required = "required" in at.dataset;
      const field = make("input", { type: "text", autocomplete: "off", spellcheck: false, placeholder: example, required });
      (required ? form : optional).append(labeled(required ? `${parameter} (required)` : parameter, "", field));
      return { name: parameter, place: at.dataset.in, required, field };
    });
    if (optional.childElementCount) form.append(make("details", {}, make("summary", { textContent: `Optional parameters (${optional.childElementCount})` }), optional));
    const stated = article.querySelector("[data-body]");
    const body = stated && make("textarea", { value: stated.textContent.replaceAll("'\\''", "'"), spellcheck: false });
    if (body) form.append(labeled("Request body", "", body));
    const send = make("button", { className: method === "get" ? "main" : "risk", textContent: method === "get" ? "Send request" : "Send request…" });
    const status = make("p", { className: "ref-status", "role": "status" });
    form.append(make("div", { className: "actions" }, send), status);

    const output = make("div", { className: "ref-block", hidden: true },
      make("p", { className: "ref-caption" }, "Response of this service"),
      make("pre", { tabIndex: 0, "role": "group", "aria-label": "Response of this service" }, make("code")));
    addCopyButton(output);

    const fail = (text, field) => {
      status.replaceChildren(make("span", { className: "is-bad", textContent: text }));
      field?.focus();
    };
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if ("key" in article.dataset && !key) return fail("Enter an API key.", secret);
      if (!/^[\x21-\x7e]*$/.test(key)) return fail("An API key has only ASCII letters, digits and symbols.", secret);
      const url = new URL(location.origin);
      let target = path;
      const headers = new Headers({ Accept: "application/json, text/plain;q=0.9, */*;q=0.8" });
      for (const { name, place, required, field } of fields) {
        const value = field.value.trim();
        if (required && !value) return fail(`Enter ${name}.`, field);
        // A browser would remove such a segment from the path.
        if (place === "path" && /^\.{1,2}$/.test(value)) return fail(`${name} cannot be ${value}.`, field);
        if (place === "path") target = target.replace(`{${name}}`, () => encodeURIComponent(value));
        else if (place === "query" && value) url.searchParams.set(name, value);
        else if (place === "header" && value) headers.set(name, value);
      }
      url.pathname = target;
      if (body) {
        try {
          JSON.parse(body.value);
        } catch (error) {
          return fail(`The request body is not valid JSON: ${error.message}`, body);
        }
        headers.set("Content-Type", "application/json");
      }
      if (key && "key" in article.dataset) headers.set("Authorization", `Bearer ${key}`);
      if (method !== "get" && !(await confirmed(method.toUpperCase(), url.pathname + url.search))) return void (status.textContent = "Not sent.");
      send.disabled = true;
      status.textContent = "Sending…";
      try {
        // No cookies: only the key decides what the request may do.
        const response = await fetch(url, { method: method.toUpperCase(), headers, body: body?.value, credentials: "omit", mode: "same-origin", redirect: "manual", cache: "no-store", referrerPolicy: "no-referrer", signal: AbortSignal.timeout(TIME_MAX) });
        const { text, truncated } = await read(response);
        let shown = text;
        try {
          if (!truncated) shown = JSON.stringify(JSON.parse(text), null, 2);
        } catch { /* Not JSON: shown as it is. */ }
        output.querySelector("code").textContent = shown;
        output.hidden = !shown;
        const redirected = response.type === "opaqueredirect";
        status.replaceChildren(make("span", { className: response.ok ? "is-good" : "is-bad", textContent: redirected ? "Redirected" : `${response.status} ${response.statusText}`.trim() }));
        const id = response.headers.get("X-Request-Id");
        if (id) status.append(" ", make("small", { textContent: id }));
        if (truncated) status.append(" ", make("small", { textContent: "Only the first 256 KiB are shown." }));
      } catch (error) {
        fail(error.name === "TimeoutError" ? "The service did not respond within 30 seconds." : `The request failed: ${error.message}`);
      }
      send.disabled = false;
    });
    const panel = make("div", { className: "ref-block" }, make("p", { className: "ref-caption" }, "Try it"), form);
    return { form, secret, nodes: [panel, output] };
  };

  for (const article of all("article[data-path]")) {
    const request = article.querySelector(".ref-block");
    const button = make("button", { type: "button", textContent: "Try it", "aria-expanded": "false", "aria-description": article.querySelector("h3").firstChild.textContent });
    request.querySelector(".actions").prepend(button);
    let built;
    button.addEventListener("click", () => {
      const opens = button.getAttribute("aria-expanded") === "false";
      button.setAttribute("aria-expanded", String(opens));
      if (!opens) return void built.nodes.forEach((node) => node.remove());
      built ??= buildForm(article);
      request.after(...built.nodes);
      built.secret.value = key;
      (key ? built.form.querySelector("input:not([data-secret]), textarea, button") : built.form.querySelector("input, textarea, button")).focus();
    });
  }
})();
