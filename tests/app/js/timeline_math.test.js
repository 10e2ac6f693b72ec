// Run by `node --test`; tests/app/test_app_js.py does so and skips where node is absent.
const test = require("node:test");
const assert = require("node:assert/strict");
const math = require("../../../moescope/views/timeline/assets/math.js");

test("a bucket is the smallest power of two of at least one pixel", () => {
  assert.equal(math.shiftFor(1000, 1000), 0);
  assert.equal(math.shiftFor(1001, 1000), 1);
  assert.equal(math.shiftFor(4096e3, 1000), 12);
  assert.equal(math.shiftFor(10, 1000), 0);
});

test("buckets cover the view and its neighbourhood", () => {
  const view = { t0: 1234, t1: 99999 };
  const buckets = math.bucketsFor(view, 800, 1);
  const width = 2 ** buckets.shift;
  assert.ok(buckets.first * width <= view.t0 - (view.t1 - view.t0));
  assert.ok((buckets.first + buckets.count) * width >= view.t1 + (view.t1 - view.t0));
  assert.ok(math.covers(buckets, view));
  assert.ok(!math.covers(buckets, { t0: view.t0, t1: view.t1 * 4 }));
  assert.ok(buckets.count <= 3 * 800 + 2);
});

test("zooming keeps the moment under the cursor", () => {
  const view = { t0: 1000, t1: 3000 };
  const closer = math.zoom(view, 0.5, 1500, 1e6);
  assert.equal(closer.t1 - closer.t0, 1000);
  assert.equal((1500 - closer.t0) / 1000, 0.25);
  const back = math.zoom(closer, 2, 1500, 1e6);
  assert.ok(Math.abs(back.t0 - view.t0) < 1e-6 && Math.abs(back.t1 - view.t1) < 1e-6);
});

test("views stay inside the timeline", () => {
  const length = 1e6;
  const all = math.fitAll(length);
  assert.ok(all.t0 < 0 && all.t1 > length);
  const wide = math.zoom(all, 100, length / 2, length);
  assert.ok(wide.t1 - wide.t0 <= length * 1.1 + 50);
  const far = math.pan({ t0: 0, t1: 1000 }, 1e12, length);
  assert.equal((far.t0 + far.t1) / 2, length);
  const tiny = math.zoom({ t0: 0, t1: 1000 }, 1e-9, 500, length);
  assert.equal(tiny.t1 - tiny.t0, 50);
});

test("durations read as in the tables", () => {
  const cases = [[0, "0"], [999, "999 ns"], [1000, "1.00 µs"], [12345, "12.3 µs"], [999600, "1.00 ms"], [45600000, "45.6 ms"], [1239e6, "1.24 s"]];
  for (const [ns, text] of cases) assert.equal(math.formatDuration(ns), text);
});

test("ticks are round, in view and told apart", () => {
  for (const view of [{ t0: 0, t1: 5e7 }, { t0: 123456789, t1: 123456989 }, { t0: -3, t1: 40 }, { t0: 1e9, t1: 9e9 }]) {
    const ticks = math.ticks(view, 1100);
    assert.ok(ticks.length >= 2 && ticks.length <= 25);
    assert.equal(new Set(ticks.map((tick) => tick.label)).size, ticks.length);
    assert.ok(ticks.every((tick) => tick.t >= view.t0 && tick.t <= view.t1));
  }
});

test("permalinks keep absolute times to the nanosecond", () => {
  const base = "1760000000123456789";
  assert.deepEqual(math.parseRange("1760000000123456790-1760000000123457789", base), { t0: 1, t1: 1000 });
  assert.equal(math.formatRange({ t0: 1, t1: 1000 }, base), "1760000000123456790-1760000000123457789");
  for (const bad of ["", "5", "9-3", "a-b", "1-2-3", null, undefined]) assert.equal(math.parseRange(bad, base), null);
});

test("binary search finds the last at most", () => {
  assert.equal(math.lastAtMost([1, 3, 5], 0), -1);
  assert.equal(math.lastAtMost([1, 3, 5], 3), 1);
  assert.equal(math.lastAtMost([1, 3, 5], 9), 2);
});

test("a tile decodes into the arrays that were written", () => {
  const head = JSON.stringify({ first: 2, count: 3, shift: 4, classes: 4, strips: [7], names: { 0: "a", 5: "b" },
    rows: [{ rank: 7, lane: "1.0.7", row: 0, longs: 1, shorts: 1 }] });
  const pad = (length) => Math.ceil(length / 8) * 8;
  const text = new TextEncoder().encode(head.padEnd(pad(8 + head.length) - 8));
  const arrays = [new Uint8Array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]), new Float64Array([40]), new Float64Array([20]), new Uint32Array([5]),
    new Uint32Array([11]), new Uint8Array([3]), new Float64Array([0.5]), new Uint32Array([2]), new Uint32Array([9]), new Uint32Array([0]),
    new Uint32Array([12]), new Uint8Array([4])];
  const bytes = new Uint8Array(8 + text.length + arrays.reduce((sum, array) => sum + pad(array.byteLength), 0));
  bytes.set(new TextEncoder().encode("MST1"));
  new DataView(bytes.buffer).setUint32(4, text.length, true);
  bytes.set(text, 8);
  let offset = 8 + text.length;
  for (const array of arrays) { bytes.set(new Uint8Array(array.buffer), offset); offset += pad(array.byteLength); }
  const tile = math.decode(bytes.buffer);
  assert.deepEqual([...tile.strips.get(7)], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
  const row = tile.rows.get("7:1.0.7:0");
  assert.deepEqual(math.hit(tile, row, 45), { position: 11, name: "b", start: 40, dur: 20, count: 1 });
  assert.deepEqual(math.hit(tile, row, 70), { position: 12, name: "a", start: 64, dur: 16, count: 9 });
  assert.equal(math.hit(tile, row, 39), null);
  assert.throws(() => math.decode(new ArrayBuffer(16)), /not a tile/);
});

test("opened ranks make room for their rows", () => {
  const sizes = { strip: 20, row: 10, gap: 2 };
  const open = new Map([[0, [{ key: "a", title: "stream 7", rows: 2 }, { key: "b", title: "thread", rows: 1 }]]]);
  const { items, height } = math.layout([{ rank: 0 }, { rank: 1 }], open, sizes);
  assert.deepEqual(items.map((item) => item.y), [0, 22, 32, 44, 56]);
  assert.equal(height, 78);
  assert.equal(items[4].rank, 1);
});

test("pinned ranks come first and keep their lanes", () => {
  const sizes = { strip: 20, row: 10, gap: 2 };
  const open = new Map([[1, [{ key: "a", title: "stream 7", rows: 1 }]]]);
  const { items, pinned, height } = math.layout([{ rank: 0 }, { rank: 1 }], open, sizes, new Set([1]));
  assert.deepEqual(items.map((item) => [item.rank, item.kind, item.pinned, item.y]),
    [[1, "strip", true, 0], [1, "row", true, 22], [0, "strip", false, 34]]);
  assert.equal(pinned, 34);
  assert.equal(height, 56);
});

const tileOf = (shift, first, count, slices, shares) => ({
  first, count, shift, names: { 0: "a", 1: "b" }, strips: new Map([[3, Uint8Array.from(shares)]]),
  rows: new Map([["3:a:0", {
    start: Float64Array.from(slices, (s) => s[0]), dur: Float64Array.from(slices, (s) => s[1]), name: Uint32Array.from(slices, (s) => s[2]),
    position: Uint32Array.from(slices, (_, i) => i), group: Uint8Array.from(slices, () => 1),
    busy: new Float64Array(), bucket: new Uint32Array(), count: new Uint32Array(), shortName: new Uint32Array(), shortPosition: new Uint32Array(), shortGroup: new Uint8Array(),
  }]]),
});

test("a coarser tile loses no slice and no time", () => {
  const tile = tileOf(0, 3, 9, [[3, 1, 0], [4, 2, 1], [6, 5, 0], [11, 1, 1]], [255, 0, 255, 255, 255, 255, 255, 255, 0]);
  const wide = math.coarser(tile, 2);
  assert.deepEqual([wide.first, wide.count, wide.shift], [0, 3, 2]);
  const row = wide.rows.get("3:a:0");
  assert.deepEqual([[...row.start], [...row.dur], [...row.position]], [[6], [5], [2]]);
  assert.deepEqual([[...row.bucket], [...row.count], [...row.shortPosition]], [[0, 1, 2], [1, 1, 1], [0, 1, 3]]);
  assert.deepEqual([...row.busy], [0.25, 0.5, 0.25]);
  assert.deepEqual([...wide.strips.get(3)], [64, 191, 191]);
  const wider = math.coarser(wide, 4);
  assert.deepEqual([...wider.rows.get("3:a:0").count], [4]);
  assert.deepEqual([...wider.rows.get("3:a:0").busy], [9 / 16]);
  assert.equal(math.coarser(tile, 0), tile);
});

test("a range of a strip is cut where it begins and ends", () => {
  const tile = tileOf(2, 0, 4, [], [255, 255, 0, 0, 0, 0, 255, 51]);
  assert.deepEqual(math.spentIn(tile, tile.strips.get(3), 2, 14).map((value) => Math.round(value * 10) / 10), [6, 4.4]);
  assert.deepEqual(math.spentIn(tile, tile.strips.get(3), -50, 100).map((value) => Math.round(value * 10) / 10), [8, 4.8]);
});
