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
  const decode = (buffer) => {
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
    const strips = new Map(head.strips.map((rank) => [rank, take(Uint8Array, head.classes * head.count)]));
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
    const { first = tile.first, shift = tile.shift } = row;
    const width = 2 ** shift;
    if (index >= 0 && t < row.start[index] + row.dur[index]) {
      return { position: row.position[index], name: tile.names[row.name[index]], start: row.start[index], dur: row.dur[index], count: 1 };
    }
    const bucket = Math.floor(t / width) - first;
    const short = lastAtMost(row.bucket, bucket);
    if (short >= 0 && row.bucket[short] === bucket) {
      const start = (bucket + first) * width;
      return { position: row.shortPosition[short], name: tile.names[row.shortName[short]], start, dur: width, count: row.count[short] };
    }
    return null;
  };

  // Places of all strips and rows from top to bottom, pinned ranks first; `open` maps ranks to their lanes ({key, title, rows}).
  const layout = (ranks, open, sizes, pins = new Set()) => {
    const items = [];
    let y = 0;
    const add = (rank, pinned) => {
      items.push({ kind: "strip", rank, pinned, y, height: sizes.strip });
      y += sizes.strip + sizes.gap;
      for (const lane of open.get(rank) ?? []) {
        for (let row = 0; row < lane.rows; row += 1) {
          items.push({ kind: "row", rank, pinned, lane: lane.key, row, title: row === 0 ? lane.title : "", y, height: sizes.row });
          y += sizes.row;
        }
        y += sizes.gap;
      }
    };
    for (const { rank } of ranks) if (pins.has(rank)) add(rank, true);
    const pinned = y;
    for (const { rank } of ranks) if (!pins.has(rank)) add(rank, false);
    return { items, height: y, pinned };
  };

  // Rebuild a decoded tile in wider buckets (`shift` at least the tile's): slices that become shorter than a bucket are counted.
  const coarser = (tile, shift) => {
    const by = shift - tile.shift;
    if (by <= 0) return tile;
    const factor = 2 ** by;
    const first = Math.floor(tile.first / factor);
    const count = Math.ceil((tile.first + tile.count) / factor) - first;
    const lead = tile.first - first * factor;
    const strips = new Map([...tile.strips].map(([rank, shares]) => [rank, coarserShares(shares, tile.count, { count, factor, lead })]));
    const rows = new Map([...tile.rows].map(([key, row]) => [key, coarserRow(row, tile, { first, shift })]));
    return { ...tile, first, count, shift, strips, rows };
  };

  const coarserShares = (shares, before, { count, factor, lead }) => {
    const classes = shares.length / before;
    const sums = new Float64Array(classes * count);
    for (let kind = 0; kind < classes; kind += 1) {
      for (let i = 0; i < before; i += 1) sums[kind * count + Math.floor((i + lead) / factor)] += shares[kind * before + i] / factor;
    }
    return Uint8Array.from(sums, (sum) => (sum > 0 ? Math.max(1, Math.min(255, Math.round(sum))) : 0));
  };

  const coarserRow = (row, tile, { first, shift }) => {
    const width = 2 ** shift;
    const cells = new Map();
    const add = (bucket, { count, busy, dur, name, position, group }) => {
      const cell = cells.get(bucket) ?? { count: 0, busy: 0, dur: -1 };
      cells.set(bucket, { count: cell.count + count, busy: cell.busy + busy, ...(dur > cell.dur ? { dur, name, position, group } : { dur: cell.dur, name: cell.name, position: cell.position, group: cell.group }) });
    };
    const kept = [];
    for (let i = 0; i < row.start.length; i += 1) {
      if (row.dur[i] >= width) { kept.push(i); continue; }
      add(Math.floor(row.start[i] / width) - first, { count: 1, busy: row.dur[i] / width, dur: row.dur[i], name: row.name[i], position: row.position[i], group: row.group[i] });
    }
    const narrow = 2 ** tile.shift;
    for (let i = 0; i < row.bucket.length; i += 1) {
      const bucket = Math.floor((row.bucket[i] + tile.first) * narrow / width) - first;
      add(bucket, { count: row.count[i], busy: row.busy[i] * narrow / width, dur: 0, name: row.shortName[i], position: row.shortPosition[i], group: row.shortGroup[i] });
    }
    const sorted = [...cells].sort(([a], [b]) => a - b);
    const pick = (Type, values) => Type.from(kept, (i) => values[i]);
    const of = (Type, key) => Type.from(sorted, ([, cell]) => cell[key]);
    return {
      start: pick(Float64Array, row.start), dur: pick(Float64Array, row.dur), name: pick(Uint32Array, row.name),
      position: pick(Uint32Array, row.position), group: pick(Uint8Array, row.group),
      busy: of(Float64Array, "busy"), bucket: Uint32Array.from(sorted, ([bucket]) => bucket), count: of(Uint32Array, "count"),
      shortName: of(Uint32Array, "name"), shortPosition: of(Uint32Array, "position"), shortGroup: of(Uint8Array, "group"),
    };
  };

  // Mean share of each class of a strip within [t0, t1), as time; exact where the range ends with buckets.
  const spentIn = (tile, shares, t0, t1) => {
    const width = 2 ** tile.shift;
    const classes = shares.length / tile.count;
    const low = Math.max(0, Math.floor(t0 / width) - tile.first);
    const high = Math.min(tile.count, Math.ceil(t1 / width) - tile.first);
    return Array.from({ length: classes }, (_, kind) => {
      let sum = 0;
      for (let i = low; i < high; i += 1) {
        const begin = (tile.first + i) * width;
        const inside = Math.min(t1, begin + width) - Math.max(t0, begin);
        sum += shares[kind * tile.count + i] / 255 * inside;
      }
      return sum;
    });
  };

  const api = { shiftFor, bucketsFor, covers, clamp, fitAll, zoom, pan, formatDuration, ticks, parseRange, formatRange, rowKey,
    decode, lastAtMost, hit, layout, coarser, spentIn };
  if (typeof module !== "undefined") module.exports = api; else root.moescopeMath = api;
})(globalThis);
