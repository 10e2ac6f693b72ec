// What the timeline does when the mouse moves or a key is pressed.
((root) => {
  const math = root.moescopeMath;
  const { SIZES } = root.moescopeDraw;

  class Listening extends root.MoescopeTimeline {
    listen() {
      const options = { signal: this.ended.signal };
      const guard = (promise) => this.guard(promise);
      this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { ...options, passive: false });
      this.canvas.addEventListener("mousedown", (event) => guard(this.onDown(event)), options);
      this.canvas.addEventListener("mousemove", (event) => this.onHover(event), options);
      this.canvas.addEventListener("mouseleave", () => { this.parts.tip.hidden = true; }, options);
      this.canvas.addEventListener("dblclick", () => this.fit(), options);
      document.addEventListener("keydown", (event) => this.onKey(event), options);
      document.addEventListener("moescope-theme", () => this.onTheme(), options);
      this.parts.search.addEventListener("keydown", (event) => {
        if (event.key === "Enter") guard(this.search(this.parts.search.value.trim(), event.shiftKey));
        if (event.key === "Escape") this.canvas.focus();
      }, options);
      this.resizing = new ResizeObserver(() => this.paint());
      this.resizing.observe(this.canvas);
    }

    onTheme() {
      this.colours = draw.readColours(this.classes, this.groups);
      if (this.data.tile) this.repaintStrips(this.data.tile);
      if (this.whole) this.minimap = root.moescopeDraw.paintMinimap(this.whole, this.colours);
      this.paint();
    }

    get isAwake() { return this.isWhole || this.node.contains(document.activeElement); }

    onWheel(event) {
      if (!this.layout || !this.isAwake) return;
      event.preventDefault();
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
      const inside = this.layout && event.buttons === 0 && event.offsetX > SIZES.gutter;
      const text = inside ? this.tipAt(event.offsetX, event.offsetY) : "";
      tip.hidden = !text;
      if (!text) return;
      tip.textContent = text;
      const box = this.node.getBoundingClientRect();
      tip.style.left = `${Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY - box.top + 18}px`;
    }

    tipAt(x, y) {
      const hit = this.hitAt(x, y);
      if (hit) return hit.count > 1 ? `${hit.count.toLocaleString("en")} slices; the longest: ${hit.name}` : `${hit.name} · ${math.formatDuration(hit.dur)}`;
      const item = this.itemAt(y);
      const shares = item?.kind === "strip" && this.tile?.strips.get(item.rank);
      if (!shares) return "";
      const t = this.painter.time(x);
      const spent = math.spentIn(this.tile, shares, t, t + 2 ** this.tile.shift);
      const total = spent.reduce((sum, value) => sum + value, 0);
      const named = spent.map((value, index) => [value / total, this.classes[index].label]).filter(([share]) => share > 0.02).sort(([a], [b]) => b - a);
      return named.map(([share, label]) => (share > 0.98 ? label : `${label} ${Math.round(share * 100)} %`)).join(", ");
    }

    onKey(event) {
      if (!this.node.isConnected) { this.end(); return; }
      if (!this.layout || !this.isAwake || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      const middle = SIZES.gutter + this.painter.plot / 2;
      const onCanvas = document.activeElement === this.canvas || document.activeElement === document.body;
      const actions = {
        w: () => this.zoomAt(0.7, middle), s: () => this.zoomAt(1 / 0.7, middle), a: () => this.panBy(-0.2), d: () => this.panBy(0.2),
        ArrowLeft: () => this.panBy(-0.2), ArrowRight: () => this.panBy(0.2), ArrowUp: () => this.moveFocus(-1), ArrowDown: () => this.moveFocus(1),
        Enter: onCanvas ? () => this.toggleRank(this.focus) : null, f: () => this.fit(), c: () => this.guard(this.selectMiddle()), r: () => this.guard(this.selectRange(this.view.t0, this.view.t1)), p: () => this.togglePin(this.focus), Escape: () => this.clear(),
        ".": () => this.guard(this.selectNeighbour(1)), ",": () => this.guard(this.selectNeighbour(-1)),
        "[": () => this.step(-1), "]": () => this.step(1), "/": () => this.parts.search.focus(), "?": () => this.parts.help.showModal(),
      };
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }
  }

  root.MoescopeTimeline = Listening;
})(globalThis);
