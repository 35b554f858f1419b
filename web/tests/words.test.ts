import { describe, expect, it } from "vitest";
import { read, written } from "../src/lib/address";
import { query } from "../src/lib/api";
import { heatOf, worst } from "../src/lib/heat";
import { bytes, compact, count, percent, plural, real, seconds, short, shown } from "../src/lib/numbers";
import { frameOf } from "../src/lib/stream";

describe("numbers", () => {
  it("are short, and a dash where nothing is known", () => {
    expect([short(null), short(NaN), short(-Infinity), short(0), short(0.0401), short(12345678), short(-0.00001234)]).toEqual(["–", "NaN", "−inf", "0", "0.0401", "1.2e7", "−1.2e−5"]);
    expect([seconds(0.00004), seconds(0.25), seconds(75), seconds(601), seconds(null)]).toEqual(["40 µs", "250 ms", "75 s", "10m 1s", "–"]);
    expect([bytes(98304), bytes(null), compact(5310), percent(0.503), count(12480), plural(1, "layer")]).toEqual(["98.3 kB", "–", "5.31k", "50 %", "12,480", "1 layer"]);
  });
  it("that JSON has no word for come as words", () => {
    expect([real("nan"), real("inf"), real(null), real("not finite")]).toEqual([NaN, Infinity, null, null]);
    expect([shown("not finite"), shown("nan")]).toEqual(["not finite", "NaN"]);
  });
});

describe("the address", () => {
  it("comes back as it was written", () => {
    const now = { view: "layer", run: "a b", step: 0, layer: "layers.0/kernel", finding: "nan_loss::0", other: null, align: "time" } as const;
    expect(read(written(now))).toEqual(now);
    expect(written(read(""))).toBe("");
  });
  it("knows the original's tabs by their names, and forgives what it does not know", () => {
    expect(read("?view=Gradient Analysis").view).toBe("gradient-analysis");
    expect(read("?view=Memory").view).toBe("memory-profiling");
    expect(read("?view=nonsense&step=-3")).toMatchObject({ view: "overview", step: null });
  });
  it("of a request holds what is known, and layers with slashes", () => {
    expect(query("/api/frame", { step: 0, run: null, layer: "" })).toBe("/api/frame?step=0");
  });
});

describe("what the server sends in base64", () => {
  it("is a frame of floats", () => {
    const text = btoa(String.fromCharCode(...new Uint8Array(new Float32Array([1.5, NaN]).buffer)));
    expect([...Array.from(frameOf({ step: 3, metrics: { grad_norm: text } }, ["a", "b"]).metrics["grad_norm"]!)]).toEqual([1.5, NaN]);
  });
  it("is a heatmap, of which the rows asked for are taken that hold something", () => {
    const cells = btoa(String.fromCharCode(1, 2, 254, 254, 5, 255));
    const heat = heatOf({ metric: "grad_norm", layers: ["a", "b", "c"], edges: [0, 1, 2], cells, min: 0, max: 1, log: false }, ["c", "b", "a"]);
    expect(heat.layers).toEqual(["c", "a"]);
    expect(heat.rows.map((row) => worst(row))).toEqual([255, 2]);
  });
});
