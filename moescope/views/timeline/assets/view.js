// The timeline: turns an element into a canvas that follows mouse and keyboard. Data come from `source` (the server's
// tiles, or those embedded in a report); `address` remembers what is shown, `kept` is a former timeline's state;
// `isWhole`: the page is the timeline's alone, else it takes keys and wheel only while it has the focus.
((root) => {
  const math = root.moescopeMath;
  const draw = root.moescopeDraw;
  const panel = root.moescopePanel;
  const { SIZES } = draw;
  const SETTLED_MS = 150;

  class Timeline {
    constructor(node, source, { address = null, kept = null, isWhole = true } = {}) {
      this.node = node;
      this.isWhole = isWhole;
      this.began = performance.now();
      this.stats = { firstTileMs: null, repaintMs: [] };
      this.ended = new AbortController();
      this.data = source;
      this.data.onTile = (tile, error) => this.onTile(tile, error);
      this.address = address;
      this.view = { t0: 0, t1: 1 };
      this.scroll = 0;
      this.open = new Map();
      this.pins = new Set();
      this.hidden = new Set();
      this.selected = null;
      this.range = null;
      this.collective = null;
      this.links = [];
      this.microbatches = [];
      this.hits = [];
      this.parts = panel.build({
        fit: () => this.setView(math.fitAll(this.length)), previousStep: () => this.step(-1), nextStep: () => this.step(1),
        help: () => this.parts.help.showModal(), picture: () => panel.save("moescope-timeline.png", this.canvas.toDataURL("image/png")),
      });
      const { bar, canvas, answers, tip, help } = this.parts;
      node.replaceChildren(bar, canvas, answers, tip, help);
      node.moescope = this;
      this.canvas = canvas;
      this.painter = new draw.Painter(canvas);
      this.listen();
      this.painted = new Promise((resolve) => { this.onPainted = resolve; });
      this.started = this.start(kept);
    }

    async start(kept) {
      const meta = await this.data.json("meta.json");
      this.classes = meta.classes;
      this.legend = panel.legend(meta.classes, (index, alone) => this.toggleClass(index, alone));
      this.parts.classes.replaceChildren(...this.legend);
      this.groups = meta.groups;
      this.base = meta.base_ns;
      this.length = meta.length_ns;
      this.steps = meta.steps;
      this.rankList = meta.ranks;
      SIZES.strip = draw.stripHeight(meta.ranks.length);
      this.ranks = new Map(meta.ranks.map((rank) => [rank.rank, rank]));
      this.colours = draw.readColours(this.classes, this.groups);
      const asked = kept ?? this.asked();
      this.view = asked.view ? math.clamp(asked.view, this.length) : math.fitAll(this.length);
      this.focus = this.ranks.has(asked.focus) ? asked.focus : this.rankList[0]?.rank;
      this.pins = new Set(asked.pins.filter((rank) => this.ranks.has(rank)));
      this.layOut();
      if (!kept) this.reveal(this.focus);
      this.paint();
      await this.painted; // what else there is to load comes after the first tile
      await Promise.all(asked.open.filter((rank) => this.ranks.has(rank)).map((rank) => this.openRank(rank)));
      if (kept) this.restore(kept);
      await this.loadRest();
    }

    // What the address asks for.
    asked() {
      const query = new URLSearchParams(this.address?.read() ?? "");
      const ranks = (name) => (query.get(name) ?? "").split(",").filter(Boolean).map(Number);
      return { view: math.parseRange(query.get("t"), this.base), focus: Number(query.get("rank") ?? NaN), open: ranks("open"), pins: ranks("pin") };
    }

    // What a timeline of the same run, drawn anew, shows again; times are absolute, since the run's beginning may move.
    keep() {
      return { base: this.base, view: this.view, range: this.range, focus: this.focus, open: [...this.open.keys()], pins: [...this.pins], scroll: this.scroll,
        hidden: this.classes?.filter((_, index) => this.hidden.has(index)).map(({ key }) => key) ?? [], word: this.parts.search.value, selected: this.selected };
    }

    restore({ base, range, scroll, hidden, word, selected, view }) {
      const moved = Number(BigInt(base) - BigInt(this.base));
      const shifted = (one) => ({ t0: one.t0 + moved, t1: one.t1 + moved });
      this.view = math.clamp(shifted(view), this.length);
      this.hidden = new Set(this.classes.flatMap(({ key }, index) => (hidden.includes(key) ? [index] : [])));
      this.showLegend();
      this.parts.search.value = word;
      this.scroll = scroll;
      this.layOut();
      if (range) this.guard(this.selectRange(range.t0 + moved, range.t1 + moved));
      else if (selected) this.guard(this.selectSlice(selected.item, selected.position));
      this.paint();
    }

    async loadRest() {
      await this.loadMinimap();
      const { microbatches } = await this.data.json("microbatches.json", {}, this.ended.signal);
      this.microbatches = microbatches;
      this.paint();
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
      this.layout = math.layout(this.rankList, this.open, SIZES, this.pins);
      this.scroll = Math.min(Math.max(0, this.scroll), Math.max(0, this.layout.height - this.layout.pinned - 60));
    }

    // ------------------------------------------------------------------ drawing
    onTile(tile, error) {
      if (error) { this.say(`A part could not be loaded: ${error.message}`); return; }
      this.repaintStrips(tile);
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
        this.painter.draw(this);
        const now = performance.now();
        this.stats.repaintMs.push(now - began);
        if (this.strips && this.stats.firstTileMs === null) { this.stats.firstTileMs = now - this.began; this.onPainted(); }
        this.data.want(this.view, this.painter.plot, this.painter.visible(this));
        this.settle();
      });
    }

    get tile() { return this.data.tile; }

    setView(view) {
      this.view = view;
      this.paint();
      this.remember();
    }

    // Once the view rests, ask which waits are wide enough to be linked to the ranks that caused them.
    settle() {
      clearTimeout(this.settling);
      const { t0, t1 } = this.view;
      const key = `${t0}-${t1}`;
      if (key === this.linked) return;
      this.settling = setTimeout(() => {
        if (!this.node.isConnected) return;
        this.linked = key;
        const fields = { low: Math.round(t0), high: Math.round(t1), least: Math.ceil((t1 - t0) / this.painter.plot * 6) };
        this.guard(this.data.json("links.json", fields, this.ended.signal).then(({ collectives }) => { this.links = collectives; this.paint(); }));
      }, SETTLED_MS);
    }

    // The address follows the view, so that it can be passed on; written at most every 200 ms.
    remember() {
      clearTimeout(this.remembering);
      this.remembering = setTimeout(() => {
        if (!this.node.isConnected) return;
        const query = new URLSearchParams({ t: math.formatRange(this.view, this.base), rank: this.focus });
        if (this.open.size) query.set("open", [...this.open.keys()].join(","));
        if (this.pins.size) query.set("pin", [...this.pins].join(","));
        this.address?.write(query);
      }, 200);
    }

    guard(promise) { return promise?.catch((error) => { if (error.name !== "AbortError") this.say(error.message); }); }

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
      if (!this.open.delete(rank)) { this.guard(this.openRank(rank)); return; }
      if (this.selected?.item.rank === rank) this.selected = null;
      this.layOut();
      this.paint();
      this.remember();
    }

    togglePin(rank) {
      if (!this.pins.delete(rank)) this.pins.add(rank);
      this.layOut();
      this.paint();
      this.remember();
    }

    reveal(rank) {
      const item = this.layout.items.find((one) => one.kind === "strip" && one.rank === rank);
      if (!item || item.pinned) return;
      const height = (this.canvas.clientHeight || 400) - SIZES.minimap - SIZES.ruler - SIZES.steps;
      if (item.y - this.layout.pinned < this.scroll) this.scroll = item.y - this.layout.pinned;
      if (item.y + item.height > this.scroll + height) this.scroll = item.y + item.height - height + 60;
      this.scroll = Math.max(0, this.scroll);
    }

    moveFocus(by) {
      const index = this.rankList.findIndex((one) => one.rank === this.focus);
      this.focus = this.rankList[Math.min(Math.max(index + by, 0), this.rankList.length - 1)].rank;
      this.reveal(this.focus);
      this.paint();
    }

    toggleClass(index, alone) {
      const all = this.classes.map((_, other) => other);
      const isAlone = this.hidden.size === all.length - 1 && !this.hidden.has(index);
      if (alone) this.hidden = new Set(isAlone ? [] : all.filter((other) => other !== index));
      else if (!this.hidden.delete(index)) this.hidden.add(index);
      this.showLegend();
      if (this.data.tile) this.repaintStrips(this.data.tile);
      this.paint();
    }

    showLegend() { this.legend.forEach((button, index) => button.setAttribute("aria-pressed", String(!this.hidden.has(index)))); }

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
      const fixed = y - this.painter.top;
      const inside = fixed < this.layout.pinned ? fixed : fixed + this.scroll;
      return this.layout.items.find((item) => item.pinned === fixed < this.layout.pinned && inside >= item.y && inside < item.y + item.height) ?? null;
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
      this.show([...panel.describeSlice(slice), ...(this.collective ? panel.describeCollective(collective, this.ranks, (rank) => this.goTo(rank)) : [])]);
      if (by && (slice.start < this.view.t0 || slice.start + slice.dur > this.view.t1)) {
        this.setView(math.pan(this.view, slice.start + slice.dur / 2 - (this.view.t0 + this.view.t1) / 2, this.length));
      }
    }

    // By keys alone: the next or previous slice, the first one in view where none is selected yet.
    async selectNeighbour(by) {
      if (this.selected) { await this.selectSlice(this.selected.item, this.selected.position, by); return; }
      for (const item of this.layout.items.filter((one) => one.kind === "row" && one.rank === this.focus)) {
        const row = this.tile?.rows.get(math.rowKey(item.rank, item.lane, item.row));
        const index = row ? row.start.findIndex((start) => start >= this.view.t0 && start < this.view.t1) : -1;
        if (index >= 0) { await this.selectSlice(item, row.position[index]); return; }
      }
    }

    // By keys alone: the collective that the chosen rank is in at the middle of the view.
    async selectMiddle() {
      this.clear();
      const { collective } = await this.data.json("at.json", { rank: this.focus, at: Math.round((this.view.t0 + this.view.t1) / 2) });
      this.showCollective(collective);
    }

    showCollective(collective) {
      this.collective = collective;
      if (collective) this.show(panel.describeCollective(collective, this.ranks, (rank) => this.goTo(rank))); else this.paint();
    }

    goTo(rank) {
      this.focus = rank;
      this.reveal(rank);
      this.guard(this.openRank(rank));
    }

    async selectRange(t0, t1) {
      this.clear();
      this.range = { t0: Math.min(t0, t1), t1: Math.max(t0, t1) };
      this.paint();
      const body = await this.data.json("range.json", { low: Math.round(this.range.t0), high: Math.round(this.range.t1) });
      if (this.range) this.show(panel.describeRange(this.range, body.ranks, this.classes));
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

    end() {
      this.ended.abort();
      this.resizing.disconnect();
      this.data.inFlight?.stop.abort();
    }
  }

  root.MoescopeTimeline = Timeline;
})(globalThis);
