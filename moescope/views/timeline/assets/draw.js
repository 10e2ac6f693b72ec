// Draws the timeline onto its canvas from tiles; knows nothing of the mouse, the keyboard or the server.
((root) => {
  // `strip` is for many ranks; few ranks get higher strips (see stripHeight).
  const SIZES = { strip: 24, row: 17, gap: 4, gutter: 150, ruler: 24, steps: 15, minimap: 30 };
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";

  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const packed = (hex) => { const [r, g, b] = rgb(hex); return (255 << 24) | (b << 16) | (g << 8) | r; };
  const mix = (a, b) => `#${rgb(a).map((v, i) => Math.round((v + rgb(b)[i]) / 2).toString(16).padStart(2, "0")).join("")}`;
  const isDark = (hex) => { const [r, g, b] = rgb(hex); return 0.299 * r + 0.587 * g + 0.114 * b < 140; };

  const stripHeight = (numRanks) => (numRanks <= 8 ? 44 : numRanks <= 16 ? 32 : 24);

  // The page's colours, read anew when the theme changes; `classes` are those of the strips, `groups` those of slices.
  const readColours = (classes, groups) => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    const special = { annotation: "p-recompute", host: "p-idle-sync", python: "p-idle-host" };
    return {
      surface: of("surface"), text: of("text"), muted: of("muted"), grid: of("grid"), hot: of("hot"), accent: of("l0"), band: of("l5"),
      classes: classes.map(({ key }) => of(`p-${key}`)),
      hatched: classes.map(({ hatched }) => hatched),
      groups: groups.map((key) => of(special[key] ?? `p-${key}`)),
    };
  };

  // Columns of stacked shares as pixels, one image for all strips of a tile; waits are hatched.
  const paintStrips = (tile, ranks, colours, hidden) => {
    const { count } = tile;
    const canvas = new OffscreenCanvas(Math.max(1, count), Math.max(1, ranks.length * SIZES.strip));
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const paint = colours.classes.map(packed);
    const { hatched } = colours;
    ranks.forEach((rank, index) => {
      const shares = tile.strips.get(rank);
      if (!shares) return;
      for (let x = 0; x < count; x += 1) {
        let level = 0;
        let y = (index + 1) * SIZES.strip;
        for (let kind = 0; kind < paint.length; kind += 1) {
          const share = shares[kind * count + x];
          if (share === 0) continue;
          level += share;
          const top = (index + 1) * SIZES.strip - Math.max(1, Math.round(Math.min(level, 255) / 255 * SIZES.strip));
          if (!hidden.has(kind)) {
            for (let row = y - 1; row >= top; row -= 1) {
              if (!hatched[kind] || (x + row) % 6 < 3) pixels[row * count + x] = paint[kind];
            }
          }
          y = Math.min(y, top);
        }
      }
    });
    context.putImageData(image, 0, 0);
    return { canvas, ranks: new Map(ranks.map((rank, index) => [rank, index])) };
  };

  class Painter {
    constructor(canvas) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d", { alpha: false });
    }

    resize() {
      const ratio = window.devicePixelRatio || 1;
      const { clientWidth: width, clientHeight: height } = this.canvas;
      if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
      }
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.width = width;
      this.height = height;
      this.plot = width - SIZES.gutter;
      this.top = SIZES.minimap + SIZES.ruler + SIZES.steps;
    }

    x(t) { return SIZES.gutter + (t - this.view.t0) / (this.view.t1 - this.view.t0) * this.plot; }
    time(x) { return this.view.t0 + (x - SIZES.gutter) / this.plot * (this.view.t1 - this.view.t0); }

    // Where an item lies on the canvas; pinned ones stay while the others scroll.
    y(item, scene) { return this.top + item.y - (item.pinned ? 0 : scene.scroll); }

    clip(x, y, width, height, paint) {
      const c = this.context;
      c.save();
      c.beginPath();
      c.rect(x, y, width, Math.max(0, height));
      c.clip();
      paint();
      c.restore();
    }

    draw(scene) {
      this.resize();
      this.view = scene.view;
      this.colours = scene.colours;
      const c = this.context;
      c.font = FONT;
      c.textBaseline = "middle";
      c.fillStyle = this.colours.surface;
      c.fillRect(0, 0, this.width, this.height);
      this.drawGutter(scene);
      this.clip(SIZES.gutter, this.top, this.plot, this.height - this.top, () => {
        this.drawSteps(scene);
        this.drawItems(scene);
        if (scene.collective) this.drawCollective(scene); else this.drawLinks(scene);
        this.drawRange(scene);
      });
      this.drawRuler(scene);
      this.drawStepNames(scene);
      this.drawMinimap(scene);
    }

    visible(scene) {
      const low = scene.scroll - 40;
      const high = scene.scroll + this.height - this.top + 40;
      return scene.layout.items.filter((item) => item.pinned || (item.y + item.height >= low && item.y <= high));
    }

    drawSteps({ steps }) {
      const c = this.context;
      c.fillStyle = this.colours.grid;
      for (const step of steps) {
        for (const t of [step.start, step.end]) {
          const x = Math.round(this.x(t));
          if (x >= SIZES.gutter && x <= this.width) c.fillRect(x, this.top, 1, this.height - this.top);
        }
      }
    }

    // Steps and, where there is room, their microbatches, in a line of their own above the ranks.
    drawStepNames({ steps, microbatches }) {
      const c = this.context;
      const y = SIZES.minimap + SIZES.ruler;
      c.fillStyle = this.colours.surface;
      c.fillRect(0, y, this.width, SIZES.steps);
      c.fillStyle = this.colours.grid;
      c.fillRect(0, y + SIZES.steps - 1, this.width, 1);
      this.clip(SIZES.gutter, y, this.plot, SIZES.steps, () => {
        for (const step of steps) this.nameSpan(`step ${step.step}`, step.start, step.end, y, this.colours.text);
        for (const one of microbatches) {
          const step = steps.find((other) => one.start >= other.start && one.start < other.end);
          const lead = step ? Math.max(SIZES.gutter, this.x(step.start)) + 54 : 0;
          if (this.x(one.start) >= lead) this.nameSpan(`mb ${one.microbatch}`, one.start, one.end, y, this.colours.muted);
        }
      });
    }

    nameSpan(text, t0, t1, y, colour) {
      const [begin, end] = [this.x(t0), Math.min(this.width, this.x(t1))];
      if (end < SIZES.gutter || begin > this.width) return;
      const c = this.context;
      c.fillStyle = colour;
      if (begin >= SIZES.gutter) c.fillRect(Math.round(begin), y + 1, 1, SIZES.steps - 3);
      const x = Math.max(SIZES.gutter, begin) + 4;
      if (end - x > text.length * 6) c.fillText(text, x, y + SIZES.steps / 2);
    }

    drawItems(scene) {
      this.context.imageSmoothingEnabled = false;
      const items = this.visible(scene);
      const edge = this.top + scene.layout.pinned;
      const paint = (item) => (item.kind === "strip" ? this.drawStrip(scene, item, this.y(item, scene)) : this.drawRow(scene, item, this.y(item, scene)));
      if (scene.tile) this.clip(SIZES.gutter, edge, this.plot, this.height - edge, () => items.filter((item) => !item.pinned).forEach(paint));
      if (scene.tile) items.filter((item) => item.pinned).forEach(paint);
      if (!scene.layout.pinned) return;
      this.context.fillStyle = this.colours.muted;
      this.context.fillRect(SIZES.gutter, edge - 2, this.plot, 1);
    }

    drawStrip(scene, item, y) {
      const { tile, strips } = scene;
      const c = this.context;
      c.fillStyle = this.colours.grid;
      c.fillRect(SIZES.gutter, y + SIZES.strip, this.plot, 1);
      const index = strips?.ranks.get(item.rank);
      if (index === undefined) return;
      const width = 2 ** tile.shift;
      const first = Math.max(0, Math.floor(this.view.t0 / width) - tile.first);
      const last = Math.min(tile.count, Math.ceil(this.view.t1 / width) - tile.first);
      if (last <= first) return;
      const x0 = this.x((tile.first + first) * width);
      const x1 = this.x((tile.first + last) * width);
      c.drawImage(strips.canvas, first, index * SIZES.strip, last - first, SIZES.strip, x0, y, x1 - x0, SIZES.strip);
      const reach = scene.ranks.get(item.rank)?.uncertainty_ns ?? [0, 0];
      const pixels = (reach[1] - reach[0]) / (this.view.t1 - this.view.t0) * this.plot;
      if (pixels >= 4) this.drawUncertainty(y, pixels);
    }

    // How far this rank may be shifted against the reference clock, as a bar at the strip's right end.
    drawUncertainty(y, pixels) {
      const c = this.context;
      const width = Math.min(pixels, this.plot / 2);
      const x = this.width - 10 - width;
      c.fillStyle = this.colours.text;
      const middle = y + SIZES.strip / 2;
      c.fillRect(x, middle - 1, width, 2);
      c.fillRect(x, middle - 5, 2, 10);
      c.fillRect(x + width - 2, middle - 5, 2, 10);
    }

    drawRow(scene, item, y) {
      const { tile } = scene;
      const row = tile.rows.get(root.moescopeMath.rowKey(item.rank, item.lane, item.row));
      if (!row) return;
      const c = this.context;
      const height = item.height - 2;
      const { first = tile.first, shift = tile.shift } = row; // embedded rows have buckets of their own
      const width = 2 ** shift;
      const scale = this.plot / (this.view.t1 - this.view.t0);
      const chosen = scene.selected?.item;
      const isSelected = chosen?.rank === item.rank && chosen.lane === item.lane && chosen.row === item.row;
      for (let i = 0; i < row.bucket.length; i += 1) {
        const start = (row.bucket[i] + first) * width;
        if (start + width < this.view.t0) continue;
        if (start > this.view.t1) break;
        c.globalAlpha = 0.35 + 0.65 * Math.min(1, row.busy[i]);
        c.fillStyle = this.colours.groups[row.shortGroup[i]];
        c.fillRect(this.x(start), y, Math.max(1, width * scale), height);
      }
      c.globalAlpha = 1;
      const from = Math.max(0, root.moescopeMath.lastAtMost(row.start, this.view.t0));
      for (let i = from; i < row.start.length && row.start[i] <= this.view.t1; i += 1) {
        const x0 = this.x(row.start[i]);
        const x1 = x0 + Math.max(1, row.dur[i] * scale);
        if (x1 < SIZES.gutter) continue;
        const colour = this.colours.groups[row.group[i]];
        c.fillStyle = colour;
        c.fillRect(x0, y, x1 - x0 > 3 ? x1 - x0 - 0.6 : x1 - x0, height);
        this.label(tile.names[row.name[i]], Math.max(x0, SIZES.gutter), Math.min(x1, this.width), y + height / 2, colour);
        if (isSelected && scene.selected.position === row.position[i]) this.frame(x0, y, x1 - x0, height);
      }
    }

    label(text, x0, x1, y, colour) {
      const room = Math.floor((x1 - x0 - 6) / 6);
      if (room < 3) return;
      this.context.fillStyle = isDark(colour) ? "#ffffff" : "#15181c";
      this.context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, x0 + 3, y + 0.5);
    }

    frame(x, y, width, height) {
      const c = this.context;
      c.strokeStyle = this.colours.text;
      c.lineWidth = 2;
      c.strokeRect(x, y, Math.max(3, width), height);
    }

    strips(scene) {
      return new Map(scene.layout.items.filter((item) => item.kind === "strip").map((item) => [item.rank, this.y(item, scene)]));
    }

    // One collective over all its ranks: its outline on every strip, and lines from the waiting ranks to the last one's arrival.
    drawCollective(scene) {
      const c = this.context;
      const places = this.strips(scene);
      const last = scene.collective.members.find((member) => member.rank === scene.collective.last_rank);
      const target = last && places.get(last.rank);
      for (const member of scene.collective.members) {
        const y = places.get(member.rank);
        if (y === undefined) continue;
        this.frame(this.x(member.start), y, (member.end - member.start) / (this.view.t1 - this.view.t0) * this.plot, SIZES.strip);
        if (member === last || target === undefined || member.arrival_wait_ns === 0) continue;
        c.strokeStyle = this.colours.hot;
        c.lineWidth = 1.2;
        c.beginPath();
        c.moveTo(this.x(member.start), y + SIZES.strip / 2);
        c.lineTo(this.x(last.start), target + SIZES.strip / 2);
        c.stroke();
      }
      if (target !== undefined) this.dot(this.x(last.start), target + SIZES.strip / 2, 5);
    }

    dot(x, y, radius) {
      const c = this.context;
      c.fillStyle = this.colours.text;
      c.beginPath();
      c.arc(x, y, radius, 0, 2 * Math.PI);
      c.fill();
    }

    // Every collective in view whose waits are wide enough to see: where they end, a line to the rank that all waited for.
    drawLinks(scene) {
      const places = this.strips(scene);
      const scale = this.plot / (this.view.t1 - this.view.t0);
      const c = this.context;
      for (const { last_rank: late, members } of scene.links) {
        const last = members.find((member) => member.rank === late);
        const waiting = members.filter((member) => member !== last && member.arrival_wait_ns * scale >= 6 && places.has(member.rank));
        if (!last || !places.has(late) || waiting.length === 0) continue;
        const x = this.x(last.start);
        if (x < SIZES.gutter || x > this.width) continue;
        const ys = [late, ...waiting.map((member) => member.rank)].map((rank) => places.get(rank) + SIZES.strip / 2);
        c.fillStyle = this.colours.text;
        c.fillRect(x - 0.5, Math.min(...ys), 1, Math.max(...ys) - Math.min(...ys));
        for (const y of ys.slice(1)) c.fillRect(x - 4, y - 0.5, 4, 1);
        this.dot(x, ys[0], 3.5);
      }
    }

    drawRange({ range }) {
      if (!range) return;
      const c = this.context;
      const [x0, x1] = [this.x(range.t0), this.x(range.t1)];
      c.globalAlpha = 0.16;
      c.fillStyle = this.colours.accent;
      c.fillRect(x0, this.top, x1 - x0, this.height - this.top);
      c.globalAlpha = 1;
      c.fillRect(x0, this.top, 1.5, this.height - this.top);
      c.fillRect(x1 - 1.5, this.top, 1.5, this.height - this.top);
    }

    drawGutter(scene) {
      const c = this.context;
      c.fillStyle = this.colours.grid;
      c.fillRect(SIZES.gutter - 1, this.top, 1, this.height - this.top);
      const edge = this.top + scene.layout.pinned;
      const items = this.visible(scene);
      const paint = (item) => this.drawName(scene, item, this.y(item, scene) + item.height / 2);
      this.clip(0, edge, SIZES.gutter - 2, this.height - edge, () => items.filter((item) => !item.pinned).forEach(paint));
      this.clip(0, this.top, SIZES.gutter - 2, this.height - this.top, () => items.filter((item) => item.pinned).forEach(paint));
    }

    drawName(scene, item, y) {
      const c = this.context;
      if (item.kind !== "strip") {
        c.fillStyle = this.colours.muted;
        if (item.title) c.fillText(item.title, 22, y);
        return;
      }
      const { host } = scene.ranks.get(item.rank);
      const here = item.rank === scene.focus;
      if (here) { c.fillStyle = this.colours.accent; c.fillRect(0, y - item.height / 2, 3, item.height); }
      c.fillStyle = this.colours.text;
      c.font = here ? `bold ${FONT}` : FONT;
      c.fillText(`${scene.open.has(item.rank) ? "▾" : "▸"} rank ${item.rank}${item.pinned ? " •" : ""}`, 8, y);
      c.font = FONT;
      c.fillStyle = this.colours.muted;
      c.fillText(host, 80, y);
    }

    drawRuler(scene) {
      const c = this.context;
      const y = SIZES.minimap;
      c.fillStyle = this.colours.surface;
      c.fillRect(0, y, this.width, SIZES.ruler);
      c.fillStyle = this.colours.grid;
      c.fillRect(0, y + SIZES.ruler - 1, this.width, 1);
      c.fillStyle = this.colours.muted;
      c.fillText(root.moescopeMath.formatDuration(this.view.t1 - this.view.t0), 8, y + SIZES.ruler / 2);
      c.save();
      c.beginPath();
      c.rect(SIZES.gutter, y, this.plot, SIZES.ruler);
      c.clip();
      for (const tick of root.moescopeMath.ticks(this.view, this.plot)) {
        const x = this.x(tick.t);
        c.fillStyle = this.colours.muted;
        c.fillRect(x, y + SIZES.ruler - 6, 1, 5);
        if (x + 4 + c.measureText(tick.label).width < this.width) c.fillText(tick.label, x + 4, y + SIZES.ruler / 2 - 1);
      }
      c.restore();
    }

    drawMinimap(scene) {
      const c = this.context;
      const height = SIZES.minimap - 4;
      c.fillStyle = this.colours.surface;
      c.fillRect(0, 0, this.width, SIZES.minimap);
      c.fillStyle = this.colours.muted;
      c.fillText("all ranks", 8, height / 2 + 1);
      const place = (t) => SIZES.gutter + t / scene.length * this.plot;
      if (scene.minimap) {
        c.imageSmoothingEnabled = true;
        c.drawImage(scene.minimap, 0, 0, scene.minimap.width, scene.minimap.height, SIZES.gutter, 2, this.plot, height);
      }
      for (const step of scene.steps) {
        const x = place(step.start);
        c.fillStyle = this.colours.text;
        c.fillRect(x, 2, 1, height);
      }
      const [x0, x1] = [Math.max(SIZES.gutter, place(this.view.t0)), Math.min(this.width, place(this.view.t1))];
      c.globalAlpha = 0.6;
      c.fillStyle = this.colours.surface;
      c.fillRect(SIZES.gutter, 2, x0 - SIZES.gutter, height);
      c.fillRect(x1, 2, this.width - x1, height);
      c.globalAlpha = 1;
      c.strokeStyle = this.colours.accent;
      c.lineWidth = 2;
      c.strokeRect(x0 + 1, 2, Math.max(3, x1 - x0 - 2), height);
    }
  }

  // The mean over ranks of each class, as a small picture for the minimap.
  const paintMinimap = (tile, colours) => {
    const { count, strips } = tile;
    const mean = new Float64Array(colours.classes.length * count);
    for (const shares of strips.values()) for (let i = 0; i < mean.length; i += 1) mean[i] += shares[i] / strips.size;
    const merged = { count, strips: new Map([[0, mean]]) };
    const lighter = { classes: colours.classes.map((c, kind) => (colours.hatched[kind] ? mix(c, colours.surface) : c)), hatched: [] };
    return paintStrips(merged, [0], lighter, new Set()).canvas;
  };

  root.moescopeDraw = { SIZES, stripHeight, Painter, paintStrips, paintMinimap, readColours };
})(globalThis);
