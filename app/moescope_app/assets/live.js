// When a run has gone on, its page is drawn anew; what the reader had opened stays open, the page stays where it was, and
// charts keep their zoom and what was hidden by their legends. Tables and the timeline look after themselves.
(() => {
  const SETTLED_MS = 2000;
  const open = new Set();
  let path = null;
  let version = null;
  let place = { height: 0, scroll: 0 };

  const all = () => [...document.querySelectorAll("#page details")];
  const nameOf = (details) => {
    const section = details.closest("[id]");
    return `${section.id} ${[...section.querySelectorAll("details")].indexOf(details)}`;
  };
  const remember = () => {
    const page = document.getElementById("page");
    if (page && !page.style.minHeight) place = { height: page.clientHeight, scroll: window.scrollY };
  };
  const restore = () => {
    const page = document.getElementById("page");
    for (const details of all()) details.open = open.has(nameOf(details));
    page.style.minHeight = `${place.height}px`;
    window.scrollTo(0, place.scroll);
    setTimeout(() => { page.style.minHeight = ""; }, SETTLED_MS);
  };

  const charts = new Map();
  const AXIS = /^[xy]axis\d*\.(range|autorange)/;

  // A chart that is new on the page follows what was done to the one of the same panel before it.
  const follow = (plot) => {
    const name = `${location.pathname} ${plot.closest("section")?.id}`;
    const state = charts.get(name) ?? { axes: {}, hidden: [] };
    charts.set(name, state);
    const shown = () => plot.data.map((trace) => (state.hidden.includes(trace.name) ? "legendonly" : true));
    if (Object.keys(state.axes).length) window.Plotly.relayout(plot, state.axes);
    if (state.hidden.length) window.Plotly.restyle(plot, { visible: shown() });
    plot.on("plotly_relayout", (changes) => {
      for (const [key, value] of Object.entries(changes)) {
        if (!AXIS.test(key)) continue;
        if (key.endsWith("autorange")) for (const other of Object.keys(state.axes)) if (other.startsWith(key.split(".")[0])) delete state.axes[other];
        if (!key.endsWith("autorange")) state.axes[key] = value;
      }
    });
    plot.on("plotly_restyle", () => { state.hidden = plot.data.filter((trace) => trace.visible === "legendonly").map((trace) => trace.name); });
  };

  new MutationObserver(() => {
    for (const plot of document.querySelectorAll(".js-plotly-plot:not([data-followed])")) {
      if (!plot.on || !plot._fullLayout) continue;
      plot.dataset.followed = "";
      follow(plot);
    }
  }).observe(document, { childList: true, subtree: true });

  document.addEventListener("toggle", ({ target }) => {
    if (!target.isConnected || !target.matches("#page details")) return;
    if (target.open) open.add(nameOf(target)); else open.delete(nameOf(target));
    remember();
  }, true);
  document.addEventListener("scroll", remember, { passive: true });
  new MutationObserver(() => {
    const now = document.getElementById("version")?.dataset.version;
    if (now === undefined || (now === version && path === location.pathname)) return;
    if (path === location.pathname) restore(); else open.clear();
    path = location.pathname;
    version = now;
  }).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-version"] });
})();
