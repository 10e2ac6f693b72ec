// What stands around the canvas: the bar above it, the help, and the answers below it. Names are only ever text nodes.
((root) => {
  const KEYS = [
    ["W S", "zoom in, zoom out (also Ctrl + wheel)"], ["A D", "move left, right (also Shift + drag, Shift + wheel)"],
    ["↑ ↓", "choose the rank above, below"], ["Enter", "open or close the chosen rank (also a click on its name)"],
    ["drag", "select a range: its breakdown by rank"], ["click", "select a slice, or the collective a rank is in"],
    [". ,", "next, previous slice in the row"], ["[ ]", "previous, next step"], ["F", "fit the selection, or everything"],
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

  const CLASS_NAMES = ["Compute", "Transfer", "Waiting", "Copies"];
  const swatch = (index) => element("i", { className: `swatch class-${index}` });

  const build = (actions) => {
    const search = element("input", { type: "search", placeholder: "Search names  /", className: "filter" });
    search.setAttribute("aria-label", "Search names");
    const found = element("span", { className: "note" });
    const legend = CLASS_NAMES.map((name, index) => {
      const button = element("button", { className: "legend-item", title: "Show or hide" }, swatch(index), name);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        actions.toggle(index, shown);
      });
      return button;
    });
    const button = (text, title, action) => {
      const made = element("button", { className: "action", title }, text);
      made.addEventListener("click", action);
      return made;
    };
    const bar = element("div", { className: "timeline-bar" }, search, found, button("◂ step", "Previous step  [", actions.previousStep),
      button("step ▸", "Next step  ]", actions.nextStep), button("Fit", "Fit everything  F", actions.fit), ...legend,
      element("span", { className: "note idle" }, "blank: idle"), button("?", "Keyboard help", actions.help));
    const canvas = element("canvas", { className: "timeline-canvas", tabIndex: 0 });
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", "Timeline of all ranks; press question mark for the keys");
    const answers = element("div", { className: "timeline-answers", hidden: true });
    const tip = element("div", { className: "timeline-tip", hidden: true });
    const help = element("dialog", { className: "timeline-help" }, element("h2", {}, "Keys"), element("dl", {},
      ...KEYS.flatMap(([keys, what]) => [element("dt", {}, keys), element("dd", {}, what)])), button("Close", "Esc", () => help.close()));
    return { bar, search, found, canvas, answers, tip, help };
  };

  const duration = (ns) => root.moescopeMath.formatDuration(ns);

  // A slice: what was recorded about it.
  const describeSlice = (slice) => {
    const shown = (value) => (Array.isArray(value) ? (value.length > 24 ? `${value.slice(0, 24).join(", ")}, …` : value.join(", ")) : value);
    return [element("h3", {}, slice.name), facts([["rank", slice.rank], ["duration", duration(slice.dur)], ["start, ns", slice.start_ns],
      ...Object.entries(slice.details).map(([key, value]) => [key.replaceAll("_", " "), shown(value)])])];
  };

  // A collective: who waited for whom, with a way to each rank.
  const describeCollective = (collective, goTo) => {
    const waited = [...collective.members].sort((a, b) => b.arrival_wait_ns - a.arrival_wait_ns);
    const total = waited.reduce((sum, member) => sum + member.arrival_wait_ns, 0);
    const where = [collective.layer === null ? "" : `layer ${collective.layer}`, collective.phase ?? ""].filter(Boolean).join(", ");
    const last = element("button", { className: "action" }, `rank ${collective.last_rank}`);
    last.addEventListener("click", () => goTo(collective.last_rank));
    const heading = element("h3", {}, `${collective.kind.replaceAll("_", " ")} ${collective.sequence}${where ? `, ${where}` : ""}`);
    const story = element("p", {}, total > 0 ? `The others waited ${duration(total)} in sum for ` : "The last to arrive was ", last, ".");
    const rows = waited.slice(0, 64).map((member) => element("tr", {}, ...[`rank ${member.rank}`, duration(member.arrival_wait_ns),
      duration(member.transfer_ns)].map((text) => element("td", {}, text))));
    const head = element("tr", {}, ...["", "arrival wait", "transfer"].map((text) => element("th", {}, text)));
    return [heading, facts([["step", collective.step], ["group", collective.group]]), story, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))];
  };

  // A range: how long each rank did what.
  const describeRange = (range, body) => {
    const span = range.t1 - range.t0;
    const head = element("tr", {}, element("th", {}, `range of ${duration(span)}`), ...CLASS_NAMES.map((name) => element("th", {}, name)), element("th", {}, "Idle"));
    const rows = body.ranks.map(({ rank, busy_ns: busy }) => {
      const idle = Math.max(0, span - busy.reduce((sum, value) => sum + value, 0));
      return element("tr", {}, element("td", {}, `rank ${rank}`), ...[...busy, idle].map((value) =>
        element("td", {}, `${duration(value)} · ${(value / span * 100).toFixed(1)} %`)));
    });
    return [element("table", { className: "range" }, element("thead", {}, head), element("tbody", {}, ...rows))];
  };

  root.moescopePanel = { element, build, describeSlice, describeCollective, describeRange };
})(globalThis);
