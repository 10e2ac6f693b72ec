// Tables are fetched when they come into view and built from text nodes; they sort by a click or Enter and filter by a
// word, and stay so when the page is drawn anew.
// Charts are saved as pictures by the buttons beside their titles.
(() => {
  const MOST_SHOWN = 500;
  const SEEN_AT_ONCE = 3; // rows that need no filter
  const kept = new Map();

  const element = (name, options, ...children) => {
    const made = Object.assign(document.createElement(name), options);
    made.append(...children);
    return made;
  };

  const compare = (a, b) => {
    if (a === null || b === null) return (a === null ? -1 : 1) - (b === null ? -1 : 1);
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };

  const build = (table, source) => {
    const name = `${source} ${table.key}`;
    const state = kept.get(name) ?? { column: -1, down: true, word: "", scroll: 0 };
    kept.set(name, state);
    const body = element("tbody", {});
    const note = element("p", { className: "note" });
    const headers = table.columns.map((column, index) => {
      const header = element("th", { className: column.numeric ? "n" : "", tabIndex: 0, scope: "col" }, column.title);
      const sort = () => {
        state.down = state.column === index ? !state.down : true;
        state.column = index;
        mark();
        fill();
      };
      header.addEventListener("click", sort);
      header.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
      return header;
    });
    const mark = () => headers.forEach((header, index) => {
      if (index !== state.column) header.removeAttribute("aria-sort");
      else header.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    });
    const fill = () => {
      let rows = table.texts.map((_, index) => index);
      if (state.word) rows = rows.filter((row) => table.texts[row].some((text) => text.toLowerCase().includes(state.word)));
      if (state.column >= 0) {
        rows.sort((a, b) => (state.down ? -1 : 1) * compare(table.values[a][state.column], table.values[b][state.column]));
      }
      body.replaceChildren(...rows.slice(0, MOST_SHOWN).map((row) => element("tr", {}, ...table.texts[row].map((text, column) =>
        element("td", { className: table.columns[column].numeric ? "n" : text.length <= 18 ? "s" : "" }, text)))));
      const shown = Math.min(rows.length, MOST_SHOWN);
      note.textContent = shown < table.num_rows ? `${shown} of ${table.num_rows.toLocaleString("en")} rows; the CSV has all.` : "";
    };
    const parts = [];
    if (table.texts.length > SEEN_AT_ONCE) {
      const filter = element("input", { type: "search", placeholder: "Filter rows", className: "filter", value: state.word });
      filter.setAttribute("aria-label", "Filter rows");
      filter.addEventListener("input", () => { state.word = filter.value.trim().toLowerCase(); fill(); });
      parts.push(filter);
    }
    const grid = element("table", {}, element("thead", {}, element("tr", {}, ...headers)), body);
    if (table.caption) grid.prepend(element("caption", {}, table.caption));
    mark();
    fill();
    const frame = element("div", { className: "scroll", tabIndex: 0 }, grid);
    frame.addEventListener("scroll", () => { state.scroll = frame.scrollTop; }, { passive: true });
    if (state.scroll) requestAnimationFrame(() => { frame.scrollTop = state.scroll; });
    return element("div", {}, ...parts, frame, note);
  };

  const load = async (place) => {
    place.dataset.loaded = "";
    try {
      const answer = await fetch(place.dataset.src);
      if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
      place.replaceChildren(...(await answer.json()).tables.map((table) => build(table, place.dataset.src)));
    } catch (error) {
      delete place.dataset.loaded;
      place.replaceChildren(element("p", { className: "note" }, `The table could not be loaded: ${error.message}`));
    }
  };

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && entry.target.dataset.loaded === undefined) load(entry.target);
    }
  }, { rootMargin: "200px" });
  new MutationObserver(() => {
    for (const place of document.querySelectorAll(".table[data-src]:not([data-watched])")) {
      place.dataset.watched = "";
      seen.observe(place);
    }
  }).observe(document, { childList: true, subtree: true });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-picture]");
    const panel = button?.closest("section");
    const plot = panel?.querySelector(".js-plotly-plot");
    if (!plot || !window.Plotly) return;
    const background = getComputedStyle(document.body).backgroundColor;
    const figure = { data: plot.data, layout: { ...plot.layout, paper_bgcolor: background }, config: {} };
    window.Plotly.downloadImage(figure, {
      format: button.dataset.picture, filename: `moescope-${panel.id}`, width: plot.offsetWidth, height: plot.offsetHeight, scale: 2,
    });
  });
})();
