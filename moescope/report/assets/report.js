(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const data = JSON.parse(document.getElementById("data").textContent);
  const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const units = { duration: [1e6, " ms"], factor: [1, "×"] };

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("moescope-theme", root.dataset.theme); } catch { /* a file opened from disk may have no storage */ }
    document.dispatchEvent(new Event("moescope-theme"));
  });

  const hide = () => { tip.hidden = true; };
  const show = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  };

  const cellText = (matrix, hit, event) => {
    const box = hit.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * matrix.columns.length);
    const row = Math.floor((event.clientY - box.top) / box.height * matrix.rows.length);
    const value = matrix.values[row]?.[column];
    if (value === undefined) return null;
    const [scale, unit] = units[matrix.kind] ?? [1, ""];
    const shown = value === null ? "–" : digits.format(value / scale) + unit;
    return `${matrix.row} ${matrix.rows[row]}, ${matrix.column} ${matrix.columns[column]}: ${shown}`;
  };

  for (const svg of document.querySelectorAll("svg.chart")) {
    for (const title of svg.querySelectorAll("title")) {
      title.parentNode.dataset.tip = title.textContent;
      title.remove();
    }
    const matrix = data[svg.closest("figure").dataset.matrix];
    svg.addEventListener("mousemove", (event) => {
      const text = event.target.dataset.tip ?? (matrix && event.target.matches(".hit") ? cellText(matrix, event.target, event) : null);
      if (text) show(event, text); else hide();
    });
    svg.addEventListener("mouseleave", hide);
  }

  const sort = (header) => {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const index = header.cellIndex;
    const down = header.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[index];
      return cell.dataset.v === undefined ? cell.textContent : cell.dataset.v === "" ? -Infinity : Number(cell.dataset.v);
    };
    const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b))));
  };
  for (const header of document.querySelectorAll("th")) {
    header.tabIndex = 0;
    header.addEventListener("click", () => sort(header));
    header.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(header); });
  }

  const button = (text, title, action) => {
    const made = Object.assign(document.createElement("button"), { type: "button", className: "action", textContent: text, title });
    made.addEventListener("click", action);
    return made;
  };
  const save = (filename, address) => Object.assign(document.createElement("a"), { href: address, download: filename }).click();

  const SEEN_AT_ONCE = 3; // rows that need no filter

  // Text that a spreadsheet would take for a formula is quoted.
  const csvCell = (cell) => {
    const raw = cell.dataset.v ?? cell.textContent;
    const text = cell.dataset.v === undefined && /^\s*[=+\-@]/.test(raw) ? `'${raw}` : raw;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  for (const table of document.querySelectorAll(".scroll > table")) {
    const bar = Object.assign(document.createElement("div"), { className: "actions" });
    const filter = Object.assign(document.createElement("input"), { type: "search", className: "filter", placeholder: "Filter rows" });
    filter.setAttribute("aria-label", "Filter rows");
    filter.addEventListener("input", () => {
      const word = filter.value.trim().toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(word);
    });
    bar.append(...(table.tBodies[0].rows.length > SEEN_AT_ONCE ? [filter] : []), button("CSV", "Save this table with raw values", () => {
      const lines = [...table.rows].map((row) => [...row.cells].map(csvCell).join(","));
      save(`${table.id}.csv`, `data:text/csv;charset=utf-8,${encodeURIComponent(lines.join("\n"))}`);
    }));
    table.parentNode.before(bar);
  }

  // A chart with the page's styles written into it, since a picture has no style sheet.
  const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "font-size", "font-family", "font-weight", "text-anchor", "opacity"];
  const alone = (svg) => {
    const copy = svg.cloneNode(true);
    const inline = (from, to) => {
      const style = getComputedStyle(from);
      for (const name of STYLES) to.style.setProperty(name, style.getPropertyValue(name));
      [...from.children].forEach((child, index) => inline(child, to.children[index]));
    };
    inline(svg, copy);
    const defs = document.querySelector("svg.defs > defs");
    const patterns = defs.cloneNode(true);
    inline(defs, patterns);
    const { width, height } = svg.viewBox.baseVal;
    const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ width, height, fill: getComputedStyle(document.body).backgroundColor })) back.setAttribute(name, value);
    copy.prepend(patterns, back);
    for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(name, value);
    return { address: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`, width, height };
  };
  const picture = async (svg, filename) => {
    const { address, width, height } = alone(svg);
    const image = Object.assign(new Image(), { src: address });
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    save(filename, canvas.toDataURL("image/png"));
  };
  for (const figure of document.querySelectorAll("figure:has(svg.chart)")) {
    const name = `moescope-${figure.closest("section").id}`;
    const chart = figure.querySelector("svg.chart");
    const bar = Object.assign(document.createElement("div"), { className: "actions" });
    bar.append(button("PNG", "Save this chart", () => picture(chart, `${name}.png`)), button("SVG", "Save this chart", () => save(`${name}.svg`, alone(chart).address)));
    figure.prepend(bar);
  }
})();
