// The timeline's arithmetic, free of the page: `node --test` runs it, the page finds it as window.moescopeMath.
// Times are ns since the timeline's start, as numbers; absolute times are decimal strings, because they exceed 2^53.
((root) => {
  const MIN_SPAN = 50;

  // The smallest power of two of ns that is at least one pixel.
  const shiftFor = (span, pixels) => Math.max(0, Math.ceil(Math.log2(span / pixels) - 1e-9));

  // Buckets that cover the view and, to either side, `over` times its width.
  const bucketsFor = (view, pixels, over = 1) => {
    const span = view.t1 - view.t0;
    const shift = shiftFor(span, pixels);
    const first = Math.floor((view.t0 - over * span) / 2 ** shift);
    const last = Math.ceil((view.t1 + over * span) / 2 ** shift);
    return { first, count: last - first, shift };
  };

  const covers = (tile, view) =>
    tile.first * 2 ** tile.shift <= view.t0 && (tile.first + tile.count) * 2 ** tile.shift >= view.t1;

  // Keep a view inside the timeline: no narrower than a few ns, no wider than all with a margin.
  const clamp = (view, length) => {
    const span = Math.min(Math.max(view.t1 - view.t0, MIN_SPAN), length * 1.1 + MIN_SPAN);
    const middle = Math.min(Math.max((view.t0 + view.t1) / 2, 0), length);
    return { t0: middle - span / 2, t1: middle + span / 2 };
  };

  const fitAll = (length) => clamp({ t0: -0.02 * length, t1: 1.02 * length }, length);

  // Zoom by `factor` (below 1 is closer) with the moment `at` staying where it is.
  const zoom = (view, factor, at, length) => {
    const span = Math.min(Math.max((view.t1 - view.t0) * factor, MIN_SPAN), length * 1.1 + MIN_SPAN);
    const share = (at - view.t0) / (view.t1 - view.t0);
    return clamp({ t0: at - share * span, t1: at + (1 - share) * span }, length);
  };

  const pan = (view, delta, length) => clamp({ t0: view.t0 + delta, t1: view.t1 + delta }, length);

  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

  // Three significant digits in the unit that fits.
  const formatDuration = (ns) => {
    if (ns === 0) return "0";
    const [size, unit] = UNITS.find(([s]) => Math.abs(ns) >= s * 0.9995) ?? UNITS[3];
    const value = ns / size;
    if (size === 1) return `${Math.round(value)} ns`;
    const exponent = Number(value.toExponential(2).split("e")[1]);
    const digits = Math.max(0, 2 - exponent);
    return `${value.toFixed(digits)} ${unit}`;
  };

  // Round moments in view, at least `gap` pixels apart, with labels as precise as the step needs.
  const ticks = (view, pixels, gap = 110) => {
    const raw = (view.t1 - view.t0) / pixels * gap;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max(1, [1, 2, 5, 10].find((m) => m * power >= raw * 0.999) * power);
    const [size, unit] = UNITS.find(([s]) => Math.max(Math.abs(view.t1), step) >= s) ?? UNITS[3];
    const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / size) + 1e-9)));
    const made = [];
    for (let i = Math.ceil(view.t0 / step); i * step <= view.t1; i += 1) {
      made.push({ t: i * step, label: i === 0 ? "0" : `${(i * step / size).toFixed(digits)} ${unit}` });
    }
    return made;
  };

  // "1760000000000000000-1760000000012000000" to a view, and back. Null where the text is no range.
  const parseRange = (text, base) => {
    const match = /^(\d{1,25})-(\d{1,25})$/.exec(text ?? "");
    if (!match) return null;
    const [t0, t1] = [match[1], match[2]].map((moment) => Number(BigInt(moment) - BigInt(base)));
    return t1 > t0 ? { t0, t1 } : null;
  };
  const formatRange = (view, base) =>
    [view.t0, view.t1].map((t) => String(BigInt(base) + BigInt(Math.round(t)))).join("-");

  const rowKey = (rank, lane, row) => `${rank}:${lane}:${row}`;

  // A tile's bytes as arrays; see moescope/views/timeline/encode.py for the layout.
  const decode = (buffer, numClasses) => {
    const bytes = new Uint8Array(buffer);
    if (String.fromCharCode(...bytes.subarray(0, 4)) !== "MST1") throw new Error("not a tile");
    const headerLength = new DataView(buffer).getUint32(4, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + headerLength)));
    let offset = 8 + headerLength;
    const take = (Type, length) => {
      const array = new Type(buffer, offset, length);
      offset += Math.ceil(length * Type.BYTES_PER_ELEMENT / 8) * 8;
      return array;
    };
    const strips = new Map(head.strips.map((rank) => [rank, take(Uint8Array, numClasses * head.count)]));
    const rows = new Map(head.rows.map((row) => [rowKey(row.rank, row.lane, row.row), {
      start: take(Float64Array, row.longs), dur: take(Float64Array, row.longs), name: take(Uint32Array, row.longs),
      position: take(Uint32Array, row.longs), group: take(Uint8Array, row.longs),
      busy: take(Float64Array, row.shorts), bucket: take(Uint32Array, row.shorts), count: take(Uint32Array, row.shorts),
      shortName: take(Uint32Array, row.shorts), shortPosition: take(Uint32Array, row.shorts), shortGroup: take(Uint8Array, row.shorts),
    }]));
    return { first: head.first, count: head.count, shift: head.shift, names: head.names, strips, rows };
  };

  // Index of the last element that is at most `value`; -1 where there is none.
  const lastAtMost = (sorted, value) => {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  };

  // What is at a moment in a decoded row: a slice, else the longest of the bucket's short ones, else null.
  const hit = (tile, row, t) => {
    const index = lastAtMost(row.start, t);
    const width = 2 ** tile.shift;
    if (index >= 0 && t < row.start[index] + row.dur[index]) {
      return { position: row.position[index], name: tile.names[row.name[index]], start: row.start[index], dur: row.dur[index], count: 1 };
    }
    const bucket = Math.floor(t / width) - tile.first;
    const short = lastAtMost(row.bucket, bucket);
    if (short >= 0 && row.bucket[short] === bucket) {
      const start = (bucket + tile.first) * width;
      return { position: row.shortPosition[short], name: tile.names[row.shortName[short]], start, dur: width, count: row.count[short] };
    }
    return null;
  };

  // Places of all strips and rows from top to bottom; `open` maps ranks to their lanes ({key, title, rows}).
  const layout = (ranks, open, sizes) => {
    const items = [];
    let y = 0;
    for (const { rank } of ranks) {
      items.push({ kind: "strip", rank, y, height: sizes.strip });
      y += sizes.strip + sizes.gap;
      for (const lane of open.get(rank) ?? []) {
        for (let row = 0; row < lane.rows; row += 1) {
          items.push({ kind: "row", rank, lane: lane.key, row, title: row === 0 ? lane.title : "", y, height: sizes.row });
          y += sizes.row;
        }
        y += sizes.gap;
      }
    }
    return { items, height: y };
  };

  // Where in a list of hits to go from a moment: the next (or, backwards, the previous) one.
  const stepHit = (hits, from, backwards) => {
    if (hits.length === 0) return -1;
    if (backwards) {
      const before = hits.findLastIndex((h) => h.start < from - 0.5);
      return before < 0 ? hits.length - 1 : before;
    }
    const after = hits.findIndex((h) => h.start > from + 0.5);
    return after < 0 ? 0 : after;
  };

  const api = { shiftFor, bucketsFor, covers, clamp, fitAll, zoom, pan, formatDuration, ticks, parseRange, formatRange, rowKey,
    decode, lastAtMost, hit, layout, stepHit };
  if (typeof module !== "undefined") module.exports = api; else root.moescopeMath = api;
})(globalThis);
