// What stands around the canvas: the bar above it, the help, and the answers below it. Names are only ever text nodes.
((root) => {
  const KEYS = [
    ["W S", "zoom in, zoom out (also Ctrl + wheel)"], ["A D", "move left, right (also Shift + drag, Shift + wheel)"],
    ["↑ ↓", "choose the rank above, below"], ["Enter", "open or close the chosen rank (also a click on its name)"],
    ["drag", "select a range: its breakdown by rank"], ["click", "select a slice, or the collective a rank is in"],
    ["C", "the collective that the chosen rank is in, in the middle"], ["R", "what each rank does in view, by part"],
    ["P", "pin the chosen rank to the top, or let it go"],
    [". ,", "next, previous slice in the row (the first in view of an opened rank)"], ["[ ]", "previous, next step"], ["F", "fit the selection, or everything"],
    ["/", "search names; Enter next, Shift + Enter previous"], ["Esc", "clear the selection"], ["?", "this help"],
  ];

  const element = (name, options, ...children) => {
    const { data = {}, ...properties } = options;
    const made = Object.assign(document.createElement(name), properties);
    Object.assign(made.dataset, data);
    made.append(...children);
    return made;
  };

  const facts = (pairs) => element("dl", { className: "facts small" }, ...pairs.filter(([, value]) => value !== undefined && value !== null)
    .map(([label, value]) => element("div", {}, element("dt", {}, label), element("dd", {}, String(value)))));

  const swatch = ({ key, hatched }) => element("i", { className: `swatch ${hatched ? "hatched" : ""} p-${key}` });

  // One button per class of the strips; pressed while it is shown. Alt + click shows it alone, or all again.
  const legend = (classes, toggle) => classes.map((one, index) => {
    const button = element("button", { className: "legend-item", title: "Show or hide; Alt + click: this alone" }, swatch(one), one.label);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", (event) => toggle(index, event.altKey));
    return button;
  });

  const build = (actions) => {
    const search = element("input", { type: "search", placeholder: "Search names  /", className: "filter" });
    search.setAttribute("aria-label", "Search names");
    const found = element("span", { className: "note" });
    const classes = element("div", { className: "timeline-legend" });
    classes.setAttribute("aria-label", "Parts of the step");
    const button = (text, title, action) => {
      const made = element("button", { className: "action", title }, text);
      made.addEventListener("click", action);
      return made;
    };
    const bar = element("div", { className: "timeline-bar" }, search, found, button("◂ step", "Previous step  [", actions.previousStep),
      button("step ▸", "Next step  ]", actions.nextStep), button("Fit", "Fit everything  F", actions.fit), button("PNG", "Save what is drawn", actions.picture),
      button("?", "Keyboard help", actions.help), classes);
    const canvas = element("canvas", { className: "timeline-canvas", tabIndex: 0 });
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", "Timeline of all ranks; press question mark for the keys");
    const answers = element("div", { className: "timeline-answers", hidden: true });
    const tip = element("div", { className: "timeline-tip", hidden: true });
    const help = element("dialog", { className: "timeline-help" }, element("h2", {}, "Keys"), element("dl", {},
      ...KEYS.flatMap(([keys, what]) => [element("dt", {}, keys), element("dd", {}, what)])), button("Close", "Esc", () => help.close()));
    return { bar, search, found, classes, canvas, answers, tip, help };
  };

  const save = (filename, address) => element("a", { href: address, download: filename }).click();

  // Text that a spreadsheet would take for a formula is quoted.
  const csvCell = (value) => {
    const text = typeof value === "string" && /^\s*[=+\-@]/.test(value) ? `'${value}` : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  // A table of {text, value} cells that sorts by its headers and is saved as CSV with raw values.
  const table = (name, className, titles, rows) => {
    const body = element("tbody", {});
    const fill = (ordered) => body.replaceChildren(...ordered.map((row) => element("tr", {}, ...row.map(({ text, value, title = "" }) =>
      element("td", { className: typeof value === "number" ? "n" : "s", title }, text)))));
    const headers = titles.map(({ content, title }, index) => {
      const header = element("th", { tabIndex: 0, scope: "col", title }, ...content);
      const sort = () => {
        const down = header.getAttribute("aria-sort") !== "descending";
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
        fill([...rows].sort((a, b) => (down ? -1 : 1) * order(a[index].value, b[index].value)));
      };
      header.addEventListener("click", sort);
      header.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.stopPropagation(); sort(); } });
      return header;
    });
    fill(rows);
    const button = element("button", { className: "action", title: "Save this table with raw values" }, "CSV");
    button.addEventListener("click", () => {
      const lines = [titles.map(({ title }) => title), ...rows.map((row) => row.map(({ value }) => value))];
      save(`moescope-${name}.csv`, `data:text/csv;charset=utf-8,${encodeURIComponent(lines.map((line) => line.map(csvCell).join(",")).join("\n"))}`);
    });
    return [button, element("table", { className }, element("thead", {}, element("tr", {}, ...headers)), body)];
  };

  const duration = (ns) => root.moescopeMath.formatDuration(ns);

  // A slice: what was recorded about it.
  const describeSlice = (slice) => {
    const shown = (value) => (Array.isArray(value) ? (value.length > 24 ? `${value.slice(0, 24).join(", ")}, …` : value.join(", ")) : value);
    return [element("h3", {}, slice.name), facts([["rank", slice.rank], ["duration", duration(slice.dur)], ["start, ns", slice.start_ns],
      ...Object.entries(slice.details).map(([key, value]) => [key.replaceAll("_", " "), shown(value)])])];
  };

  // A collective: who waited for whom, with a way to each rank.
  const describeCollective = (collective, ranks, goTo) => {
    const waited = [...collective.members].sort((a, b) => b.arrival_wait_ns - a.arrival_wait_ns);
    const total = waited.reduce((sum, member) => sum + member.arrival_wait_ns, 0);
    const where = [collective.layer === null ? "" : `layer ${collective.layer}`, collective.phase ?? ""].filter(Boolean).join(", ");
    const last = element("button", { className: "action" }, `rank ${collective.last_rank}`);
    last.addEventListener("click", () => goTo(collective.last_rank));
    const heading = element("h3", {}, `${collective.kind.replaceAll("_", " ")} ${collective.sequence}${where ? `, ${where}` : ""}`);
    const story = element("p", {}, total > 0 ? `The others waited ${duration(total)} in sum for ` : "The last to arrive was ", last, ".");
    const clock = (rank) => { const [low, high] = ranks.get(rank)?.uncertainty_ns ?? [0, 0]; return high > low ? `− ${duration(-low)} + ${duration(high)}` : "exact"; };
    const time = (value) => ({ text: duration(value), value });
    const rows = waited.slice(0, 64).map((member) => [{ text: `rank ${member.rank}`, value: member.rank }, time(member.arrival_wait_ns),
      time(member.transfer_ns), { text: clock(member.rank), value: clock(member.rank) }]);
    const titles = [["rank", "rank"], ["arrival wait", "arrival wait [ns]"], ["transfer", "transfer [ns]"], ["clock may be off by", "clock may be off by"]];
    return [heading, facts([["step", collective.step], ["group", collective.group]]), story,
      ...table("collective", "", titles.map(([text, title]) => ({ content: [text], title })), rows)];
  };

  // A range: how long each rank did what, and all of them together.
  const describeRange = (range, ranks, classes) => {
    const span = range.t1 - range.t0;
    const used = classes.map((one, index) => ({ ...one, index })).filter(({ index }) => ranks.some(({ busy_ns: busy }) => busy[index] > 0));
    const cell = (value, whole) => ({ text: value ? `${(value / whole * 100).toFixed(1)} %` : "–", value: Math.round(value), title: duration(value) });
    const line = (name, busy, whole) => [{ text: name, value: name }, ...used.map(({ index }) => cell(busy[index], whole))];
    const sums = classes.map((_, index) => ranks.reduce((sum, { busy_ns: busy }) => sum + busy[index], 0));
    const titles = [{ content: [`range of ${duration(span)}`], title: "rank" },
      ...used.map((one) => ({ content: [swatch(one), ` ${one.label}`], title: `${one.label} [ns]` }))];
    const rows = [...(ranks.length > 1 ? [line("all ranks", sums, span * ranks.length)] : []), ...ranks.map(({ rank, busy_ns: busy }) => line(`rank ${rank}`, busy, span))];
    return table("range", "range", titles, rows);
  };

  root.moescopePanel = { element, build, save, legend, describeSlice, describeCollective, describeRange };
})(globalThis);
