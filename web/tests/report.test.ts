import { describe, expect, it } from "vitest";
import { magnitudeAt, NAN, NOT_MEASURED, TOP } from "../src/lib/chart";
import { heatOf, ratioOf } from "../src/lib/heat";
import { answer } from "../src/lib/report";

const base64 = (bytes: Uint8Array) => btoa(String.fromCharCode(...bytes));
const floats = (...values: number[]) => base64(new Uint8Array(new Float32Array(values).buffer));
const frame = (step: number, first: number, second: number) => ({ step, metrics: { grad_norm: floats(first, second), min_activation: floats(-first, NaN) } });
const heat = { metric: "grad_norm", layers: ["a", "b"], edges: [0, 10, 20, 30], cells: base64(new Uint8Array([0, 126, TOP, NOT_MEASURED, NAN, TOP])), min: 0, max: TOP, log: false };
const bits = (...values: number[]) => base64(new Uint8Array(new Uint32Array(values).buffer));
const [NONE, ISNAN, INF, ONE, TWO] = [0x7fc00000, 0x7fe00000, 0x7f800000, 0x3f800000, 0x40000000];
const curves = { layers: ["a", "b"], edges: [0, 10, 20, 30], max: bits(ONE, ISNAN, INF, NONE, NONE, TWO), min: bits(ONE, ONE, ONE, NONE, NONE, ONE), single: false, of: 30 };
const file = {
  answers: { "/api/run": { layers: [{ name: "a", type: "Linear" }] }, "/api/series?metric=loss": { steps: [1] }, "/api/summary": { layers: [1, 2, 3], timed_layers: 3 } },
  layers: ["a", "b"], flops: [7, null], frames: [frame(0, 1, 2), frame(10, 3, 4), frame(20, 5, 6)],
  flames: [{ step: 10, spans: [] }], heats: { grad_norm: heat }, curves: { grad_norm: curves, dead_ratio: { ...curves, min: null, single: true } }, histograms: { activation: { a: { tensor: "a", histograms: [{ step: 0 }] } } },
};
const asked = (path: string) => answer(file, path) as Record<string, any>; // eslint-disable-line @typescript-eslint/no-explicit-any

describe("a run that lies in the page", () => {
  it("shows of a step what was measured at it or last before", () => {
    expect(asked("/api/moment?step=15&layer=a")).toMatchObject({ step: 10, timed_step: 10, inspected: { layer: "a", type: "Linear", step: 10, latest: { grad_norm: 3, flops: 7 } } });
    expect(asked("/api/moment?step=15&layer=a")["inspected"]["history"]).toHaveLength(2);
    expect(asked("/api/moment")).toMatchObject({ step: 20, inspected: null });
  });
  it("leaves unknown what was not measured", () => {
    expect(asked("/api/moment?layer=b")["inspected"]["latest"]).toMatchObject({ grad_norm: 6, min_activation: null });
  });
  it("cuts a heatmap to the steps asked for", () => {
    const cut = answer(file, "/api/heatmap/cells?metric=grad_norm&from=12&to=29") as typeof heat & { cells: Uint8Array };
    expect([cut.edges, [...cut.cells]]).toEqual([[10, 20, 30], [126, TOP, NAN, TOP]]);
  });
  it("has curves in numbers, with NaN and infinities, and without what was not measured", () => {
    expect(asked("/api/series?metric=grad_norm&layer=a")).toMatchObject({ steps: [0, 10, 20], max: [1, NaN, Infinity], min: [1, 1, 1], measured: null, of: 30 });
    expect(asked("/api/series?metric=grad_norm&layer=b")).toMatchObject({ steps: [20], max: [2], min: [1] });
    expect(asked("/api/series?metric=dead_ratio&layer=a&from=10&to=19")).toMatchObject({ steps: [10], measured: 1, of: 10 });
    expect(asked("/api/series?metric=grad_norm&layer=none")).toBeUndefined();
  });
  it("has series, histograms and ranges, and nothing that it does not hold", () => {
    expect(asked("/api/series?metric=loss&points=9")).toEqual({ steps: [1] });
    expect(asked("/api/histogram?layer=a&kind=activation")).toMatchObject({ kind: "activation", tensor: "a" });
    expect(asked("/api/histogram?layer=b&kind=gradient")["histograms"]).toEqual([]);
    expect([asked("/api/summary?limit=2")["layers"], asked("/api/summary")["layers"]]).toEqual([[1, 2], [1, 2, 3]]);
    expect(asked("/api/series?metric=lr")).toBeUndefined();
    expect(asked("/api/heatmap/cells?metric=memory")).toBeUndefined();
  });
});

describe("a histogram by powers of two", () => {
  const row = { step: 0, looked_at: 110, zero: 20, not_finite: 10, from: -1, counts: [40, 0, 40] };
  it("tells below which magnitude a share of the values lies", () => {
    expect([0.1, 0.5, 0.9, 1].map((share) => magnitudeAt(row, share))).toEqual([0, 1, 4, 4]);
  });
  it("tells nothing of values that are all no numbers", () => {
    expect(magnitudeAt({ ...row, not_finite: 110 }, 0.5)).toBeNull();
    expect(magnitudeAt(undefined, 0.5)).toBeNull();
  });
});

describe("a ratio of two runs", () => {
  it("is NaN where one of them is", () => {
    const [here, there] = [heatOf(heat, ["b"]), heatOf({ ...heat, cells: base64(new Uint8Array([0, 0, 0, TOP, TOP, TOP])) }, ["b"])];
    const found = ratioOf(here, there);
    expect([found.rows[0]![0], found.rows[0]![15], found.rows[0]![29]]).toEqual([NOT_MEASURED, NAN, 125]);
  });
});
