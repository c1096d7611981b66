// The dashboard's only script. Every page works without it; with it, pages update live.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const typing = (at) => at && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName));

  // Live updates: when the service reports a change, fetch the page again and replace what differs.
  const morph = (old, now) => {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || (old.id || "") !== (now.id || "")) {
      old.replaceWith(now);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
      return;
    }
    // Keep <details> elements open that the user opened.
    const opened = (name) => name === "open" && old.nodeName === "DETAILS";
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && !opened(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const keep = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    let at = old.firstChild;
    for (const child of [...now.childNodes]) {
      const same = child.id && keep.get(child.id);
      if (same && same !== at) old.insertBefore(same, at), (at = same);
      if (at) {
        const next = at.nextSibling;
        morph(at, child);
        at = next;
      } else old.append(child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  };
  const lost = document.getElementById("lost");
  let source, asking = false, again = false;
  const refresh = async () => {
    if (asking) return void (again = true);
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") return location.reload();
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const region of all("[data-region]")) {
          const now = page.getElementById(region.id);
          if (now) morph(region, document.adoptNode(now));
        }
        local();
      }
    } catch { /* The event stream detects and shows a lost connection. */ }
    asking = false;
    if (again) (again = false), refresh();
  };
  const listen = () => {
    const from = document.body.dataset.live;
    if (!from || source || document.hidden) return;
    source = new EventSource(from);
    source.addEventListener("open", () => {
      lost.hidden = true;
      // On the first connection too: something may have changed since the page was rendered.
      refresh();
    });
    source.addEventListener("changed", refresh);
    source.addEventListener("error", () => {
      lost.hidden = false;
      if (source && source.readyState === EventSource.CLOSED) {
        source = undefined;
        setTimeout(listen, 3000);
      }
    });
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source?.close(), (source = undefined);
    else if (document.body.dataset.live) refresh(), listen();
  });
  listen();

  // Follow a growing log. A search shows only the lines that contain its text.
  const follow = (within) => {
    const log = within.querySelector("pre[data-follow]");
    if (!log) return null;
    const search = within.querySelector("[data-log-search]");
    const matches = within.querySelector("[data-log-matches]");
    let text = log.textContent, started = false;
    const show = () => {
      const wanted = search?.value.toLowerCase() ?? "";
      const lines = wanted ? text.split("\n").filter((line) => line.toLowerCase().includes(wanted)) : null;
      log.textContent = lines ? lines.join("\n") : text;
      if (matches) matches.textContent = lines ? `${lines.length} ${lines.length === 1 ? "line" : "lines"}` : "";
    };
    search?.addEventListener("input", show);
    const source = new EventSource(log.dataset.follow);
    source.addEventListener("open", () => (lost.hidden = true));
    source.addEventListener("log", (event) => {
      const end = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      text = started ? text + event.data : event.data;
      if (!started || search?.value) show();
      else log.append(event.data);
      started = true;
      if (end) log.scrollTop = log.scrollHeight;
    });
    source.addEventListener("end", () => source.close());
    source.addEventListener("error", () => (lost.hidden = source.readyState === EventSource.OPEN));
    return source;
  };
  follow(document);

  // The drawer shows a linked page next to this one.
  const drawer = document.getElementById("drawer");
  let followed = null;
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-drawer]");
    if (!link || !drawer || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const answer = await fetch(link.href, { redirect: "manual" }).catch(() => null);
    if (!answer?.ok) return void (location.href = link.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    // Live updates replace the regions of the page below, never those of the drawer.
    for (const region of all("[data-region]", page)) region.removeAttribute("id"), region.removeAttribute("data-region");
    const content = drawer.querySelector("[data-content]");
    content.replaceChildren(...document.adoptNode(page).childNodes);
    followed = follow(content);
    drawer.showModal();
    local();
  });
  drawer?.addEventListener("close", () => followed?.close());
  drawer?.addEventListener("click", (event) => event.target === drawer && drawer.close());

  // Keep relative times current.
  const words = (seconds) => {
    const size = Math.abs(seconds);
    const [number, unit] = size < 60 ? [0, ""] : size < 3600 ? [size / 60, "min"] : size < 86400 ? [size / 3600, "h"] : [size / 86400, "d"];
    if (!unit) return seconds >= 0 ? "just now" : "in a moment";
    return seconds >= 0 ? `${Math.floor(number)} ${unit} ago` : `in ${Math.floor(number)} ${unit}`;
  };
  setInterval(() => {
    for (const time of all("time[data-ago]")) {
      const text = words((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
  }, 30000);

  // Forms: filters apply on change; buttons are disabled on submit, to prevent a second submission.
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-auto]");
    if (form && event.target.type !== "search") form.requestSubmit();
    if (event.target.matches("[data-all]")) for (const box of all("input[data-pick]")) box.checked = event.target.checked;
    if (event.target.matches("[data-all],[data-pick],[data-all-matching]")) count();
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method === "get") for (const field of [...form.elements]) if (field.name && !field.value) field.disabled = true;
    // A file download keeps the page open, so its button stays enabled.
    if (form.method === "post" && !event.submitter?.matches("[data-file]")) setTimeout(() => all("button", form).forEach((button) => (button.disabled = true)));
  });
  addEventListener("pageshow", () => {
    all("form :disabled").forEach((field) => field.hasAttribute("data-needs-pick") || (field.disabled = false));
    matchPreview();
  });
  // Start is enabled only while every field has the value that the service rendered with the
  // preview. Compare with the rendered values: browsers restore edits when the user goes back.
  // The service checks the same with the preview's token.
  const previewed = document.querySelector("form[data-previewed]");
  const edited = (field) => {
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.tagName === "SELECT") return [...field.options].some((option) => option.selected !== option.defaultSelected);
    return ["INPUT", "TEXTAREA"].includes(field.tagName) && field.value !== field.defaultValue;
  };
  const matchPreview = () => {
    const start = previewed?.querySelector("[data-needs-preview]");
    if (!start) return;
    start.disabled = [...previewed.elements].some(edited);
    document.getElementById("changed").hidden = !start.disabled;
  };
  for (const kind of ["input", "change"]) previewed?.addEventListener(kind, matchPreview);
  previewed?.addEventListener("reset", () => setTimeout(matchPreview));
  matchPreview();
  const count = () => {
    const every = document.querySelector("[data-all-matching]:checked");
    const picked = every ? Number(every.value) : all("input[data-pick]:checked").length;
    for (const bar of all("[data-bar]")) bar.hidden = picked === 0;
    for (const button of all("[data-needs-pick]")) {
      const verb = button.dataset.needsPick;
      const [one, many] = (button.dataset.noun ?? "server servers").split(" ");
      button.disabled = picked === 0;
      button.textContent = picked ? `${verb} ${picked.toLocaleString("en")} ${picked === 1 ? one : many}…` : `${verb} selected…`;
    }
  };
  count();

  // Menus: only one is open; a click outside or Escape closes it; typing narrows a long one.
  document.addEventListener("click", (event) => {
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && document.querySelector("details.menu[open]");
    if (menu) (menu.open = false), menu.querySelector("summary").focus();
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("details.menu") && event.target.open) event.target.querySelector("[data-narrow]")?.focus();
  }, true);
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-narrow]")) return;
    const text = event.target.value.toLowerCase();
    for (const item of all("li", event.target.closest(".sheet"))) item.hidden = !item.textContent.toLowerCase().includes(text);
  });

  // The palette: search everything while typing, choose with the arrow keys.
  const palette = document.getElementById("palette");
  if (palette) {
    const input = palette.querySelector("input"), into = document.getElementById("palette-found");
    let turn = 0;
    const look = async () => {
      const mine = ++turn;
      const answer = await fetch(`/find?q=${encodeURIComponent(input.value)}`);
      if (mine !== turn || !answer.ok) return;
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("found");
      into.replaceChildren(...(found ? [...found.childNodes] : []));
      move(0);
    };
    const move = (by) => {
      const links = all("a", into);
      const at = links.findIndex((link) => link.classList.contains("at"));
      links[at]?.classList.remove("at");
      const next = links[Math.min(Math.max(at + by, 0), links.length - 1)];
      next?.classList.add("at");
      next?.scrollIntoView({ block: "nearest" });
    };
    const open = (text = "") => {
      if (palette.open) return;
      input.value = text;
      palette.showModal();
      look();
    };
    input.addEventListener("input", look);
    palette.addEventListener("click", (event) => event.target === palette && palette.close());
    palette.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") event.preventDefault(), move(event.key === "ArrowDown" ? 1 : -1);
      const chosen = event.key === "Enter" && event.target === input && into.querySelector("a.at");
      if (chosen) event.preventDefault(), chosen.click();
    });
    // A click or the first letter opens it; the Tab key only passes by.
    const find = document.querySelector("[data-find]");
    find?.addEventListener("click", () => open(find.value));
    find?.addEventListener("input", () => (open(find.value), (find.value = "")));
    document.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") event.preventDefault(), open();
    });
  }

  // Parts of a form that the service computes while the user types, such as the next runs. A field
  // names the part that depends on it in data-asks.
  const ASK_AFTER = 150;
  for (const { id } of all("[data-ask]")) {
    const into = () => document.getElementById(id);
    const { ask, post } = into().dataset, form = into().closest("form");
    let turn = 0;
    const update = async () => {
      const mine = ++turn;
      await new Promise((resolve) => setTimeout(resolve, ASK_AFTER));
      if (mine !== turn) return;
      const names = new Set(all(`[data-asks~="${id}"]`, form).map((field) => field.name));
      if (post !== undefined) names.add("csrf");
      const fields = new URLSearchParams([...new FormData(form)].filter(([name]) => names.has(name)));
      try {
        const answer = await (post === undefined ? fetch(`${ask}?${fields}`) : fetch(ask, { method: "POST", body: fields }));
        const text = answer.ok && (await answer.text());
        if (mine !== turn || !answer.ok) return;
        const now = new DOMParser().parseFromString(text, "text/html").getElementById(id);
        if (now) morph(into(), document.adoptNode(now));
        local();
      } catch { /* The form can be sent without this. */ }
    };
    for (const kind of ["input", "change"]) form.addEventListener(kind, (event) => event.target.matches(`[data-asks~="${id}"]`) && update());
  }
  // The link above a title leads back to the list with the filters, the order and the page of the last visit.
  const LISTS = ["/servers", "/patches", "/cves", "/batches"];
  if (LISTS.includes(location.pathname)) sessionStorage.setItem(location.pathname, location.search);
  for (const link of all(".crumb a")) if (LISTS.includes(link.pathname)) link.search = sessionStorage.getItem(link.pathname) ?? "";

  // Show times in the browser's time zone.
  const local = () => {
    for (const time of all("time[data-local]")) {
      const text = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
      if (time.textContent !== text) time.textContent = text;
    }
  };
  local();
  // The service lays out the calendar by day, so it needs the browser's time zone.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) {
    document.cookie = `fleetmend_zone=${zone}; Path=/; Max-Age=31536000; SameSite=Strict${location.protocol === "https:" ? "; Secure" : ""}`;
    const laid = document.querySelector("[data-zone]");
    if (laid && laid.dataset.zone !== zone) refresh();
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });

  // Keyboard shortcuts.
  const help = document.getElementById("help");
  const goes = { o: "/", s: "/servers", p: "/patches", c: "/cves", b: "/batches" };
  let going = false;
  const step = (by) => {
    const rows = all("tr[data-row]");
    const here = rows.findIndex((row) => row.contains(document.activeElement));
    const row = rows[Math.min(Math.max(here + by, 0), rows.length - 1)];
    row?.querySelector("a[href]")?.focus();
    row?.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help?.open || palette?.open) return;
    if (typing(event.target) && event.target.type !== "checkbox") return void (event.key === "Escape" && event.target.blur());
    const went = going;
    going = false;
    if (went && goes[event.key]) return void (location.href = goes[event.key]);
    const keys = {
      "/": () => document.querySelector("[data-search]")?.focus(),
      "?": () => help?.showModal(),
      j: () => step(1),
      k: () => step(-1),
      x: () => document.activeElement?.closest("tr[data-row]")?.querySelector("input[data-pick]")?.click(),
      g: () => (going = true),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
})();
