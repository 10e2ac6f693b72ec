// Asks the server for tiles and answers; one tile request at a time, stale ones cancelled.
((root) => {
  class TimelineData {
    constructor(run) {
      this.base = `/timeline/${encodeURIComponent(run)}`;
      this.onTile = () => {};
      this.tile = null;
      this.wanted = null;
      this.inFlight = null;
      this.fetchMs = [];
    }

    async json(path, fields = {}, signal = undefined) {
      const answer = await fetch(`${this.base}/${path}?${new URLSearchParams(fields)}`, { signal });
      const body = await answer.json();
      if (!body.ok) throw new Error(body.error.message);
      return body;
    }

    async binary(buckets, strips, rows, signal) {
      const fields = { ...buckets, strips: strips.join(","), rows: rows.map((row) => `${row.rank}:${row.lane}:${row.row}`).join(";") };
      const answer = await fetch(`${this.base}/tile.bin?${new URLSearchParams(fields)}`, { signal });
      if (!answer.ok) throw new Error((await answer.json()).error.message);
      return root.moescopeMath.decode(await answer.arrayBuffer());
    }

    // Make sure that a tile with `items` over `view` is there or on its way.
    want(view, pixels, items) {
      const strips = items.filter((item) => item.kind === "strip").map((item) => item.rank);
      const rows = items.filter((item) => item.kind === "row");
      const shift = root.moescopeMath.shiftFor(view.t1 - view.t0, pixels);
      const enough = (tile) => tile && tile.shift === shift && root.moescopeMath.covers(tile, view)
        && strips.every((rank) => tile.strips.has(rank))
        && rows.every((row) => tile.rows.has(root.moescopeMath.rowKey(row.rank, row.lane, row.row)));
      this.wanted = null;
      if (enough(this.tile)) return;
      if (this.inFlight) {
        if (enough(this.inFlight)) return;
        this.wanted = { view, pixels, items };
        if (Math.abs(this.inFlight.shift - shift) > 2 || !root.moescopeMath.covers(this.inFlight, view)) this.inFlight.stop.abort();
        return;
      }
      this.request(view, pixels, strips, rows);
    }

    async request(view, pixels, strips, rows) {
      const buckets = root.moescopeMath.bucketsFor(view, pixels);
      const stop = new AbortController();
      this.inFlight = { ...buckets, stop, strips: new Set(strips),
        rows: new Set(rows.map((row) => root.moescopeMath.rowKey(row.rank, row.lane, row.row))) };
      const began = performance.now();
      try {
        this.tile = await this.binary(buckets, strips, rows, stop.signal);
        this.fetchMs.push(performance.now() - began);
        this.onTile(this.tile, null);
      } catch (error) {
        if (error.name !== "AbortError") this.onTile(null, error);
      } finally {
        this.inFlight = null;
      }
      const next = this.wanted;
      if (next) this.want(next.view, next.pixels, next.items);
    }
  }

  root.MoescopeTimelineData = TimelineData;
})(globalThis);
