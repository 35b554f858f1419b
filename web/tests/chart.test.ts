import { describe, expect, it } from "vitest";
import { beside, boxesOf, clustered, columnOf, healthOf, MINUS_INF, moved, NAN, NOT_MEASURED, palette, place, PLUS_INF, pointAt, scaleOf, ticks, TOP, valueAt, viridis, withoutGaps, zoomed } from "../src/lib/chart";
import { type Heat, heatOf, numberAt, points, ratioOf, said, worst } from "../src/lib/heat";
import type { Finding, Span } from "../src/lib/types";

const span = (name: string, start: number, end: number, depth: number): Span => ({ name, start, end, duration: end - start, depth, phase: "forward" });
const finding = (severity: Finding["severity"], layer: string, step: number): Finding => ({
  id: "1", kind: "nan_loss", severity, confidence: 1, step, last_step: null, layer, source: null, summary: "", evidence: {}, inference: "", chain: [], suggestions: [],
});

describe("scales", () => {
  it("go by powers of ten where the values span many of them", () => {
    expect(scaleOf([1e-6, 1])).toEqual({ low: 1e-6, high: 1, log: true });
    expect(scaleOf([1, 10])).toEqual({ low: 1, high: 10, log: false });
    expect(scaleOf([-1, 1e6]).log).toBe(false);
  });
  it("leave out what cannot be drawn, and are never empty", () => {
    expect(scaleOf([NaN, Infinity, null, 2, 4])).toEqual({ low: 2, high: 4, log: false });
    expect(scaleOf([])).toEqual({ low: 0, high: 1, log: false });
    expect(scaleOf([7, 7])).toEqual({ low: 7, high: 8, log: false });
  });
  it("place a value where they find it again", () => {
    for (const scale of [{ low: 1e-6, high: 10, log: true }, { low: -3, high: 5, log: false }]) {
      for (const share of [0, 0.25, 1]) expect(place(valueAt(share, scale), scale)).toBeCloseTo(share, 9);
    }
    expect(place(-5, { low: 0, high: 1, log: false })).toBe(0);
  });
});

describe("columns of steps", () => {
  it("hold the steps from their edge on", () => {
    const edges = [0, 10, 20, 25];
    expect([0, 9, 10, 24, 99, -1].map((step) => columnOf(step, edges))).toEqual([0, 0, 1, 2, 2, 0]);
  });
});

describe("an axis of steps", () => {
  it("names round ones, from the first to the last", () => {
    expect(ticks(0, 39, 8)).toEqual([0, 5, 10, 15, 20, 25, 30, 35]);
    expect(ticks(123, 9999, 4)).toEqual([5000]);
    expect(ticks(0, 9999, 5)).toEqual([0, 2000, 4000, 6000, 8000]);
    expect(ticks(7, 9, 20)).toEqual([7, 8, 9]);
    expect(ticks(0, 0, 3)).toEqual([0]);
  });
});

describe("the point of a curve at a step", () => {
  it("is the last one until then, with the steps that it stands for", () => {
    expect(pointAt(25, [10, 20, 30])).toEqual({ at: 1, from: 20, to: 29 });
    expect(pointAt(99, [10, 20, 30])).toEqual({ at: 2, from: 30, to: 99 });
    expect([pointAt(9, [10, 20]), pointAt(0, [])]).toEqual([null, null]);
  });
});

describe("cells of a heatmap", () => {
  const heat = (...rows: number[][]): Heat => ({ layers: rows.map((_, at) => `l${at}`), edges: rows[0]!.map((_, at) => at).concat(rows[0]!.length), rows: rows.map((row) => Uint8Array.from(row)), min: 0, max: TOP, log: false });
  const [no, nan, plus, minus] = [NOT_MEASURED, NAN, PLUS_INF, MINUS_INF];
  it("say in words what they are", () => {
    expect([0, TOP, nan, plus, minus, no, undefined].map((cell) => said(heat([0]), cell))).toEqual(["≈ 0", "≈ 250", "NaN", "inf", "−inf", "not measured", "not measured"]);
    expect(said({ ...heat([0]), min: null, max: null }, plus)).toBe("inf"); // no number at all was measured
  });
  it("that share a point are drawn as the gravest of them, so that none is lost", () => {
    expect([...points(heat([5, no, 7, no, no, no]), 3, 1)]).toEqual([5, 7, no]);
    expect([...points(heat([1, plus, 3, nan, minus, 9]), 2, 1)]).toEqual([plus, nan]);
    expect([...points(heat([1, 2], [no, no], [8, no], [3, no]), 2, 2)]).toEqual([1, 2, 8, no]);
    expect([...points(heat([1, 2]), 6, 1)]).toEqual([1, 1, 1, 2, 2, 2]);
  });
  it("lie where their steps are, however wide the columns", () => {
    const uneven = { ...heat([1, 2, 3]), edges: [0, 60, 90, 100] };
    expect([...points(uneven, 10, 1)]).toEqual([1, 1, 1, 1, 1, 1, 2, 2, 2, 3]);
  });
  it("of which a row has nothing are nothing", () => {
    expect([worst(Uint8Array.from([no, no])), worst(Uint8Array.from([no, 0])), worst(Uint8Array.from([plus, 3]))]).toEqual([no, 0, plus]);
    expect([numberAt(heat([0]), no), numberAt(heat([0]), minus)]).toEqual([null, -Infinity]);
  });
  it("make ratios, infinite or none at all included", () => {
    const [a, b] = [heat([0, 10, 0, plus, plus, no]), heat([0, 0, 10, 5, plus, 1])];
    const found = ratioOf(a, b).rows[0]!;
    expect([...found].map((cell) => said(ratioOf(a, b), cell))).toEqual(["≈ 1", "inf", "≈ 0.001", "inf", "NaN", "not measured"]);
    expect(heatOf({ metric: "", cells: Uint8Array.from([no, 1]), layers: ["x", "y"], edges: [0, 1], min: 0, max: 1, log: false }, ["x", "y"]).layers).toEqual(["y"]);
  });
});

describe("zoom", () => {
  const whole = { from: 0, to: 1000 };
  it("keeps the step under the cursor where it is", () => {
    const now = zoomed({ from: 0, to: 1000 }, 250, 0.5, whole);
    expect(now).toEqual({ from: 125, to: 625 });
    expect((250 - now.from) / (now.to - now.from)).toBeCloseTo(0.25);
  });
  it("never leaves the run, nor becomes too narrow to see", () => {
    expect(zoomed({ from: 0, to: 100 }, 0, 50, whole)).toEqual(whole);
    expect(zoomed({ from: 500, to: 506 }, 503, 0.01, whole).to - zoomed({ from: 500, to: 506 }, 503, 0.01, whole).from).toBe(4);
    expect(moved({ from: 900, to: 1000 }, 500, whole)).toEqual({ from: 900, to: 1000 });
    expect(moved({ from: 100, to: 200 }, -500, whole)).toEqual({ from: 0, to: 100 });
  });
});

describe("colours", () => {
  it("go from dark violet to yellow, and keep others for what is no number and for nothing", () => {
    expect(viridis(0)).toEqual([0x44, 0x01, 0x54]);
    expect(viridis(1)).toEqual([0xfd, 0xe7, 0x25]);
    const colours = palette((name) => ({ "--nan": "#ff3fa4", "--inf": "#010203", "--minus-inf": "#040506" })[name] ?? "");
    const of = (cell: number) => [...colours.subarray(cell * 4, cell * 4 + 4)];
    expect([of(NAN), of(PLUS_INF), of(MINUS_INF)]).toEqual([[255, 63, 164, 255], [1, 2, 3, 255], [4, 5, 6, 255]]);
    expect([of(TOP), of(NOT_MEASURED)[3]]).toEqual([[0xfd, 0xe7, 0x25, 255], 0]);
  });
});

describe("flame graph", () => {
  const spans = [span("a", 0, 1, 0), span("a.b", 0.2, 0.4, 1), span("loss", 9, 10, 0), span("x", 9.5, 9.6, 1)];
  it("shows a stretch of time, and leaves out what is too narrow", () => {
    expect(boxesOf(spans, 0, 10, 0.05).map((box) => box.span.name)).toEqual(["a", "loss"]);
    expect(boxesOf(spans, 0.2, 0.4, 0).map((box) => [box.span.name, box.x, box.width])).toEqual([["a", 0, 1], ["a.b", 0, 1]]);
    expect(boxesOf(spans, 1, 1, 0)).toEqual([]);
  });
  it("cuts the time between the outermost calls short, never a call", () => {
    const cut = withoutGaps(spans);
    expect(cut.map((one) => one.end - one.start).map((each) => Number(each.toFixed(9)))).toEqual([1, 0.2, 1, 0.1]);
    expect(cut[2]!.start).toBeCloseTo(1.02);
    expect(cut[3]!.start - cut[2]!.start).toBeCloseTo(0.5);
  });
});

describe("marks", () => {
  it("that would lie on one another become one, a finding before a hit", () => {
    const marks = clustered([{ step: 50, kind: "hit", label: "hit" }, { step: 51, kind: "finding", label: "found" }, { step: 90, kind: "hit", label: "late" }], 100, 200);
    expect(marks.map((mark) => [mark.kind, mark.labels, mark.x])).toEqual([["finding", ["hit", "found"], 100], ["hit", ["late"], 180]]);
  });
});

describe("health", () => {
  const frame = { step: 5, layers: ["a"], metrics: { nan_count: [0], dead_ratio: [0.95], grad_norm: [1] } };
  it("is what was found by that step, then what the numbers say", () => {
    expect(healthOf("a", frame, 0, [finding("critical", "a", 3)])).toEqual(["bad", "nan_loss"]);
    expect(healthOf("a", frame, 0, [finding("critical", "b", 3)])).toEqual(["warn", "95 % zero"]);
    expect(healthOf("a", { ...frame, metrics: { nan_count: [2] } }, 0, [])).toEqual(["bad", "NaN"]);
    expect(healthOf("a", { ...frame, metrics: { grad_norm: [1] } }, 0, [])).toEqual(["ok", "ok"]);
    expect(healthOf("b", { ...frame, metrics: { grad_norm: [NaN] } }, 0, [])).toEqual(["unknown", ""]);
  });
});

describe("a flame graph by keyboard", () => {
  const spans = [span("model", 0, 10, 0), span("a", 0, 4, 1), span("a.0", 1, 2, 2), span("b", 4, 10, 1), span("back", 12, 20, 0)];
  const boxes = boxesOf(spans, 0, 20, 0);
  const after = (name: string | null, key: string) => beside(boxes, spans.find((one) => one.name === name) ?? null, key)?.name;
  it("begins at the first call, whichever arrow is pressed", () => {
    expect(after(null, "ArrowLeft")).toBe("model");
    expect(after(null, "Enter")).toBeUndefined();
  });
  it("goes to the call beside, inside and around", () => {
    expect([after("model", "ArrowRight"), after("back", "ArrowLeft"), after("back", "ArrowRight")]).toEqual(["back", "model", undefined]);
    expect([after("model", "ArrowDown"), after("a", "ArrowDown"), after("b", "ArrowDown"), after("back", "ArrowDown")]).toEqual(["a", "a.0", undefined, undefined]);
    expect([after("a.0", "ArrowUp"), after("b", "ArrowUp"), after("model", "ArrowUp")]).toEqual(["a", "model", undefined]);
  });
});
