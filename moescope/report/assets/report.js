(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const data = JSON.parse(document.getElementById("data").textContent);
  const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const units = { duration: [1e6, " ms"], factor: [1, "×"] };

  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
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
})();
