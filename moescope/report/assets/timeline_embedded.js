// The timeline's data out of the report itself: tiles that were embedded when it was written, answered at any zoom.
((root) => {
  const math = root.moescopeMath;

  const bytesOf = async (text) => {
    const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };

  class Embedded {
    constructor(parts) {
      this.parts = parts;
      this.tile = null;
      this.onTile = () => {};
      this.fetchMs = [];
      this.ready = this.unpack();
    }

    async unpack() {
      this.levels = await Promise.all(this.parts.strips.map(async (text) => math.decode(await bytesOf(text))));
      this.rows = new Map(await Promise.all(this.parts.rows.map(async ({ rank, data }) => [rank, math.decode(await bytesOf(data))])));
    }

    // The widest level that is fine enough, else the finest there is.
    level(shift) {
      return this.levels.filter((tile) => tile.shift <= shift).at(-1) ?? this.levels[0];
    }

    async want(view, pixels, items) {
      const shift = math.shiftFor(view.t1 - view.t0, pixels);
      const opened = items.filter((item) => item.kind === "row" && item.row === 0).map((item) => item.rank);
      const key = `${shift} ${[...new Set(opened)].join()}`;
      if (key === this.key) return;
      this.key = key;
      await this.ready;
      const strips = math.coarser(this.level(shift), Math.max(shift, this.level(shift).shift));
      const rows = new Map();
      const names = {};
      for (const rank of new Set(opened)) {
        const tile = math.coarser(this.rows.get(rank), Math.max(shift, this.rows.get(rank).shift));
        for (const [row, slices] of tile.rows) rows.set(row, { ...slices, first: tile.first, shift: tile.shift });
        Object.assign(names, tile.names);
      }
      this.tile = { ...strips, rows, names };
      this.onTile(this.tile, null);
    }

    // The whole in about `count` buckets, for the minimap.
    async binary({ shift }) {
      await this.ready;
      const tile = this.level(shift);
      return math.coarser(tile, Math.max(shift, tile.shift));
    }

    async json(path, fields = {}) {
      await this.ready;
      const [what, rank] = path.replace(".json", "").split("/");
      return this[`answer_${what}`](fields, Number(rank));
    }

    answer_meta() { return this.parts.meta; }

    answer_microbatches() { return { microbatches: this.parts.microbatches }; }

    answer_lanes(_, rank) {
      if (!this.rows.has(rank)) throw new Error(`The slices of rank ${rank} are not in this file: its size is limited. moescope serve shows them.`);
      return { lanes: this.parts.rows.find((one) => one.rank === rank).lanes };
    }

    answer_links({ low, high, least }) {
      const inside = ({ members }) => members.some((member) => member.start <= high && member.end >= low && member.arrival_wait_ns >= least);
      return { collectives: this.parts.collectives.filter(inside) };
    }

    answer_at({ rank, at }) {
      const holds = ({ members }) => members.some((member) => member.rank === rank && member.start <= at && at < member.end);
      return { collective: this.parts.collectives.find(holds) ?? null };
    }

    answer_range({ low, high }) {
      const tile = this.levels[0];
      return { ranks: [...tile.strips].map(([rank, shares]) => ({ rank, busy_ns: math.spentIn(tile, shares, low, high) })) };
    }

    answer_slice({ row: key, position, step }) {
      const rank = Number(key.split(":")[0]);
      const tile = this.rows.get(rank);
      const row = tile.rows.get(key);
      const at = Math.min(Math.max(row.position.indexOf(position) + step, 0), row.start.length - 1);
      if (row.position.indexOf(position) < 0) throw new Error("This slice is counted with its neighbours in this file.");
      const start = row.start[at];
      return { rank, start, start_ns: String(BigInt(this.parts.meta.base_ns) + BigInt(start)), dur: row.dur[at], name: tile.names[row.name[at]],
        position: row.position[at], details: {} };
    }

    answer_search({ q }) {
      const word = q.toLowerCase();
      const hits = [];
      for (const [rank, tile] of this.rows) {
        const matching = new Set(Object.keys(tile.names).filter((number) => tile.names[number].toLowerCase().includes(word)).map(Number));
        for (const row of tile.rows.values()) {
          row.name.forEach((name, i) => { if (matching.has(name)) hits.push({ rank, start: row.start[i], dur: row.dur[i], name: tile.names[name] }); });
        }
      }
      hits.sort((a, b) => a.start - b.start || a.rank - b.rank);
      return { hits: hits.slice(0, 500), num_hits: hits.length, cut: hits.length > 500 };
    }
  }

  const node = document.getElementById("timeline-view");
  const embedded = document.getElementById("timeline-data");
  if (!node || !embedded) return;
  const timeline = new root.MoescopeTimeline(node, new Embedded(JSON.parse(embedded.textContent)), { isWhole: false });
  timeline.started.catch((error) => timeline.say(`The timeline could not be read: ${error.message}`));
  // Links to a moment: the timeline goes there.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-moment]");
    const view = link && math.parseRange(link.dataset.moment, timeline.base);
    if (!view) return;
    if (link.dataset.rank !== undefined) { timeline.focus = Number(link.dataset.rank); timeline.reveal(timeline.focus); }
    timeline.setView(math.clamp(view, timeline.length));
  });
})(globalThis);
