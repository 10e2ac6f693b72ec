// The timeline page: turns <div id="timeline" data-run="..."> into a canvas that follows mouse and keyboard.
(() => {
  const math = globalThis.moescopeMath;
  const draw = globalThis.moescopeDraw;
  const panel = globalThis.moescopePanel;
  const { SIZES } = draw;

  class Timeline {
    constructor(node) {
      this.node = node;
      this.run = node.dataset.run;
      this.began = performance.now();
      this.stats = { firstTileMs: null, repaintMs: [] };
      this.ended = new AbortController();
      this.data = new globalThis.MoescopeTimelineData(this.run, (tile, error) => this.onTile(tile, error));
      this.view = { t0: 0, t1: 1 };
      this.scroll = 0;
      this.open = new Map();
      this.hidden = new Set();
      this.selected = null;
      this.range = null;
      this.collective = null;
      this.hits = [];
      this.parts = panel.build({
        toggle: (index, shown) => this.toggleClass(index, shown), fit: () => this.setView(math.fitAll(this.length)),
        previousStep: () => this.step(-1), nextStep: () => this.step(1), help: () => this.parts.help.showModal(),
      });
      const { bar, canvas, answers, tip, help } = this.parts;
      node.replaceChildren(bar, canvas, answers, tip, help);
      this.canvas = canvas;
      this.painter = new draw.Painter(canvas);
      this.listen();
      this.start().catch((error) => this.say(`The timeline could not be loaded: ${error.message}`));
    }

    async start() {
      const meta = await this.data.json("meta.json");
      this.data.numClasses = meta.classes.length;
      this.groups = meta.groups;
      this.base = meta.base_ns;
      this.length = meta.length_ns;
      this.steps = meta.steps;
      this.rankList = meta.ranks;
      SIZES.strip = draw.stripHeight(meta.ranks.length);
      this.ranks = new Map(meta.ranks.map((rank) => [rank.rank, rank]));
      this.colours = draw.readColours(this.groups);
      const query = new URLSearchParams(location.search);
      const asked = math.parseRange(query.get("t"), this.base);
      this.view = asked ? math.clamp(asked, this.length) : math.fitAll(this.length);
      const rank = Number(query.get("rank") ?? NaN);
      this.focus = this.ranks.has(rank) ? rank : this.rankList[0]?.rank;
      this.layOut();
      this.reveal(this.focus);
      this.paint();
      for (const open of (query.get("open") ?? "").split(",").filter(Boolean).map(Number)) {
        if (this.ranks.has(open)) await this.openRank(open);
      }
      await this.loadMinimap();
    }

    async loadMinimap() {
      const every = Math.ceil(this.rankList.length / 64);
      const some = this.rankList.filter((_, index) => index % every === 0).map((rank) => rank.rank);
      const shift = math.shiftFor(this.length, 600);
      const count = Math.max(1, Math.ceil(this.length / 2 ** shift));
      this.whole = await this.data.binary({ first: 0, count, shift }, some, [], this.ended.signal);
      this.minimap = draw.paintMinimap(this.whole, this.colours);
      this.paint();
    }

    layOut() {
      this.layout = math.layout(this.rankList, this.open, SIZES);
      this.scroll = Math.min(Math.max(0, this.scroll), Math.max(0, this.layout.height - 60));
    }

    // ------------------------------------------------------------------ drawing
    onTile(tile, error) {
      if (error) { this.say(`A part could not be loaded: ${error.message}`); return; }
      this.repaintStrips(tile);
      this.stats.firstTileMs ??= performance.now() - this.began;
      this.paint();
    }

    repaintStrips(tile) {
      this.strips = draw.paintStrips(tile, [...tile.strips.keys()], this.colours, this.hidden);
    }

    paint() {
      if (this.frame || !this.layout) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        if (!this.node.isConnected) { this.end(); return; }
        const began = performance.now();
        this.painter.draw({
          view: this.view, scroll: this.scroll, layout: this.layout, open: this.open, ranks: this.ranks, steps: this.steps,
          length: this.length, tile: this.data.tile, strips: this.strips, minimap: this.minimap, colours: this.colours,
          focus: this.focus, selected: this.selected, range: this.range, collective: this.collective,
        });
        this.stats.repaintMs.push(performance.now() - began);
        this.data.want(this.view, this.painter.plot, this.painter.visible({ layout: this.layout, scroll: this.scroll }));
      });
    }

    setView(view) {
      this.view = view;
      this.paint();
      this.remember();
    }

    // The address follows the view, so that it can be passed on; written at most every 200 ms.
    remember() {
      clearTimeout(this.remembering);
      this.remembering = setTimeout(() => {
        if (!this.node.isConnected) return;
        const query = new URLSearchParams({ t: math.formatRange(this.view, this.base), rank: this.focus });
        if (this.open.size) query.set("open", [...this.open.keys()].join(","));
        history.replaceState(history.state, "", `${location.pathname}?${query}`);
      }, 200);
    }

    // ------------------------------------------------------------------ ranks
    async openRank(rank) {
      if (!this.open.has(rank)) {
        const { lanes } = await this.data.json(`lanes/${rank}.json`);
        this.open.set(rank, lanes);
      }
      this.layOut();
      this.paint();
      this.remember();
    }

    toggleRank(rank) {
      this.focus = rank;
      if (!this.open.delete(rank)) { this.openRank(rank).catch((error) => this.say(error.message)); return; }
      if (this.selected?.item.rank === rank) this.selected = null;
      this.layOut();
      this.paint();
      this.remember();
    }

    reveal(rank) {
      const item = this.layout.items.find((one) => one.kind === "strip" && one.rank === rank);
      if (!item) return;
      const height = (this.canvas.clientHeight || 400) - SIZES.minimap - SIZES.ruler;
      if (item.y < this.scroll) this.scroll = item.y;
      if (item.y + item.height > this.scroll + height) this.scroll = item.y + item.height - height + 60;
      this.scroll = Math.max(0, this.scroll);
    }

    moveFocus(by) {
      const index = this.rankList.findIndex((one) => one.rank === this.focus);
      this.focus = this.rankList[Math.min(Math.max(index + by, 0), this.rankList.length - 1)].rank;
      this.reveal(this.focus);
      this.paint();
    }

    toggleClass(index, shown) {
      if (shown) this.hidden.delete(index); else this.hidden.add(index);
      if (this.data.tile) this.repaintStrips(this.data.tile);
      this.paint();
    }

    // ------------------------------------------------------------------ moving
    zoomAt(factor, x) { this.setView(math.zoom(this.view, factor, this.painter.time(x), this.length)); }
    panBy(share) { this.setView(math.pan(this.view, share * (this.view.t1 - this.view.t0), this.length)); }

    step(by) {
      const starts = this.steps.map((step) => step.start);
      const middle = (this.view.t0 + this.view.t1) / 2;
      const current = Math.max(0, math.lastAtMost(starts, middle));
      const fits = this.steps[current] && this.view.t1 - this.view.t0 > 1.5 * (this.steps[current].end - this.steps[current].start);
      const step = this.steps[Math.min(Math.max(fits ? current : current + by, 0), this.steps.length - 1)];
      if (!step) return;
      const margin = 0.05 * (step.end - step.start);
      this.setView(math.clamp({ t0: step.start - margin, t1: step.end + margin }, this.length));
    }

    fit() {
      const chosen = this.range ?? (this.slice && { t0: this.slice.start, t1: this.slice.start + this.slice.dur });
      if (!chosen) { this.setView(math.fitAll(this.length)); return; }
      const margin = 0.1 * (chosen.t1 - chosen.t0) + 1;
      this.setView(math.clamp({ t0: chosen.t0 - margin, t1: chosen.t1 + margin }, this.length));
    }

    // ------------------------------------------------------------------ selecting
    itemAt(y) {
      const inside = y - this.painter.top + this.scroll;
      return this.layout.items.find((item) => inside >= item.y && inside < item.y + item.height) ?? null;
    }

    hitAt(x, y) {
      const item = this.itemAt(y);
      const row = item?.kind === "row" && this.data.tile?.rows.get(math.rowKey(item.rank, item.lane, item.row));
      const found = row && math.hit(this.data.tile, row, this.painter.time(x));
      return found ? { item, ...found } : null;
    }

    async select(x, y) {
      this.clear();
      const item = this.itemAt(y);
      if (!item || x < SIZES.gutter) return;
      this.focus = item.rank;
      const hit = this.hitAt(x, y);
      if (hit) { await this.selectSlice(hit.item, hit.position); return; }
      const { collective } = await this.data.json("at.json", { rank: item.rank, at: Math.round(this.painter.time(x)) });
      this.showCollective(collective);
    }

    async selectSlice(item, position, by = 0) {
      const fields = { row: math.rowKey(item.rank, item.lane, item.row), position, step: by };
      const slice = await this.data.json("slice.json", fields);
      this.selected = { item, position: slice.position };
      this.slice = slice;
      const { collective } = await this.data.json("at.json", { rank: item.rank, at: slice.start });
      this.collective = slice.details.kind === "communication" ? collective : null;
      this.show([...panel.describeSlice(slice), ...(this.collective ? panel.describeCollective(collective, (rank) => this.goTo(rank)) : [])]);
      if (by && (slice.start < this.view.t0 || slice.start + slice.dur > this.view.t1)) {
        this.setView(math.pan(this.view, slice.start + slice.dur / 2 - (this.view.t0 + this.view.t1) / 2, this.length));
      }
    }

    showCollective(collective) {
      this.collective = collective;
      if (collective) this.show(panel.describeCollective(collective, (rank) => this.goTo(rank))); else this.paint();
    }

    goTo(rank) {
      this.focus = rank;
      this.reveal(rank);
      this.openRank(rank).catch((error) => this.say(error.message));
    }

    async selectRange(t0, t1) {
      this.clear();
      this.range = { t0: Math.min(t0, t1), t1: Math.max(t0, t1) };
      this.paint();
      const body = await this.data.json("range.json", { low: Math.round(this.range.t0), high: Math.round(this.range.t1) });
      if (this.range) this.show(panel.describeRange(this.range, body));
    }

    clear() {
      Object.assign(this, { selected: null, slice: null, range: null, collective: null });
      this.parts.answers.hidden = true;
      this.paint();
    }

    show(children) {
      this.parts.answers.replaceChildren(...children);
      this.parts.answers.hidden = false;
      this.paint();
    }

    say(text) { this.show([panel.element("p", { className: "note" }, text)]); }

    // ------------------------------------------------------------------ searching
    async search(word, backwards) {
      if (word !== this.word) {
        this.word = word;
        this.hit = -1;
        const found = word ? await this.data.json("search.json", { q: word }) : { hits: [], num_hits: 0, cut: false };
        this.hits = found.hits;
        this.numHits = `${found.num_hits.toLocaleString("en")}${found.cut ? "+" : ""}`;
        if (!this.hits.length) { this.parts.found.textContent = word ? "nothing found" : ""; return; }
        this.hit = Math.max(0, this.hits.findIndex((one) => one.start >= this.view.t0));
      } else if (this.hits.length) {
        this.hit = (this.hit + (backwards ? -1 : 1) + this.hits.length) % this.hits.length;
      }
      if (this.hits.length) this.showHit(this.hits[this.hit]);
    }

    showHit(hit) {
      Object.assign(this, { selected: null, slice: null, collective: null });
      this.parts.found.textContent = `${this.hit + 1} of ${this.numHits}: rank ${hit.rank}`;
      this.focus = hit.rank;
      this.reveal(hit.rank);
      const span = Math.min(Math.max(hit.dur * 8, 20000), this.length);
      const middle = hit.start + hit.dur / 2;
      this.range = { t0: hit.start, t1: hit.start + Math.max(hit.dur, 1) };
      this.setView(math.clamp({ t0: middle - span / 2, t1: middle + span / 2 }, this.length));
      this.show([panel.element("h3", {}, hit.name), panel.element("p", {}, `rank ${hit.rank}, ${math.formatDuration(hit.dur)}`)]);
    }

    // ------------------------------------------------------------------ listening
    listen() {
      const options = { signal: this.ended.signal };
      const guard = (promise) => promise?.catch((error) => { if (error.name !== "AbortError") this.say(error.message); });
      this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { ...options, passive: false });
      this.canvas.addEventListener("mousedown", (event) => guard(this.onDown(event)), options);
      this.canvas.addEventListener("mousemove", (event) => this.onHover(event), options);
      this.canvas.addEventListener("mouseleave", () => { this.parts.tip.hidden = true; }, options);
      this.canvas.addEventListener("dblclick", () => this.fit(), options);
      document.addEventListener("keydown", (event) => this.onKey(event, guard), options);
      document.addEventListener("moescope-theme", () => this.onTheme(), options);
      this.parts.search.addEventListener("keydown", (event) => {
        if (event.key === "Enter") guard(this.search(this.parts.search.value.trim(), event.shiftKey));
        if (event.key === "Escape") this.canvas.focus();
      }, options);
      this.resizing = new ResizeObserver(() => this.paint());
      this.resizing.observe(this.canvas);
    }

    onTheme() {
      this.colours = draw.readColours(this.groups);
      if (this.data.tile) this.repaintStrips(this.data.tile);
      if (this.whole) this.minimap = draw.paintMinimap(this.whole, this.colours);
      this.paint();
    }

    onWheel(event) {
      event.preventDefault();
      if (!this.layout) return;
      if (event.ctrlKey || event.metaKey) { this.zoomAt(1.0015 ** event.deltaY, event.offsetX); return; }
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (sideways) this.panBy(sideways / this.painter.plot);
      if (!event.shiftKey && event.deltaY) { this.scroll += event.deltaY; this.layOut(); this.paint(); }
    }

    async onDown(event) {
      if (event.button !== 0 || !this.layout) return undefined;
      this.canvas.focus();
      const [x, y] = [event.offsetX, event.offsetY];
      const { plot } = this.painter;
      if (y < SIZES.minimap) {
        this.follow((dx) => {
          const t = (x + dx - SIZES.gutter) / plot * this.length;
          const half = (this.view.t1 - this.view.t0) / 2;
          this.setView(math.clamp({ t0: t - half, t1: t + half }, this.length));
        })(0);
        return undefined;
      }
      const item = this.itemAt(y);
      if (x < SIZES.gutter) { if (item) this.toggleRank(item.rank); return undefined; }
      if (event.shiftKey) {
        const start = { ...this.view };
        const span = start.t1 - start.t0;
        this.follow((dx) => this.setView(math.pan(start, -dx / plot * span, this.length)));
        return undefined;
      }
      const from = this.painter.time(x);
      let dragged = false;
      return new Promise((resolve, reject) => {
        this.follow((dx) => {
          dragged ||= Math.abs(dx) > 4;
          if (dragged) { this.range = { t0: Math.min(from, this.painter.time(x + dx)), t1: Math.max(from, this.painter.time(x + dx)) }; this.paint(); }
        }, () => (dragged ? this.selectRange(this.range.t0, this.range.t1) : this.select(x, y)).then(resolve, reject));
      });
    }

    // Follow the mouse until it is let go; returns the function that is called with the distance moved.
    follow(moved, done = () => {}) {
      let from = null;
      const move = (event) => { from ??= event.clientX; moved(event.clientX - from); };
      document.addEventListener("mousemove", move, { signal: this.ended.signal });
      document.addEventListener("mouseup", () => { document.removeEventListener("mousemove", move); done(); }, { once: true, signal: this.ended.signal });
      return moved;
    }

    onHover(event) {
      const { tip } = this.parts;
      const hit = this.layout && event.buttons === 0 && event.offsetX > SIZES.gutter ? this.hitAt(event.offsetX, event.offsetY) : null;
      tip.hidden = !hit;
      if (!hit) return;
      tip.textContent = hit.count > 1 ? `${hit.count.toLocaleString("en")} slices; the longest: ${hit.name}` : `${hit.name} · ${math.formatDuration(hit.dur)}`;
      const box = this.node.getBoundingClientRect();
      tip.style.left = `${Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY - box.top + 18}px`;
    }

    onKey(event, guard) {
      if (!this.node.isConnected) { this.end(); return; }
      if (!this.layout || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      const middle = SIZES.gutter + this.painter.plot / 2;
      const onCanvas = document.activeElement === this.canvas || document.activeElement === document.body;
      const actions = {
        w: () => this.zoomAt(0.7, middle), s: () => this.zoomAt(1 / 0.7, middle), a: () => this.panBy(-0.2), d: () => this.panBy(0.2),
        ArrowLeft: () => this.panBy(-0.2), ArrowRight: () => this.panBy(0.2), ArrowUp: () => this.moveFocus(-1), ArrowDown: () => this.moveFocus(1),
        Enter: onCanvas ? () => this.toggleRank(this.focus) : null, f: () => this.fit(), Escape: () => this.clear(),
        ".": () => this.selected && guard(this.selectSlice(this.selected.item, this.selected.position, 1)),
        ",": () => this.selected && guard(this.selectSlice(this.selected.item, this.selected.position, -1)),
        "[": () => this.step(-1), "]": () => this.step(1), "/": () => this.parts.search.focus(), "?": () => this.parts.help.showModal(),
      };
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }

    end() {
      this.ended.abort();
      this.resizing.disconnect();
      this.data.inFlight?.stop.abort();
    }
  }

  new MutationObserver(() => {
    const node = document.getElementById("timeline");
    if (!node || node.moescope?.run === node.dataset.run) return;
    node.moescope?.end();
    node.moescope = new Timeline(node);
  }).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-run"] });
})();
