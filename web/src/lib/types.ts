/** What the server answers. A number that JSON has no word for arrives as "nan", "inf" or "-inf". */
export type Num = number | "nan" | "inf" | "-inf" | null;
export type RunState = "running" | "paused" | "finished" | "interrupted" | "crashed" | "killed" | "unresponsive" | "unfinished";
export type Severity = "critical" | "warning" | "info";

export interface Settings {
  theme: "dark" | "light" | "auto"; refresh_s: number; max_history: number; history: number; charts: string[]; version: string; report?: { made: string; thinned: string | null };
}
export interface RunEntry { name: string; last_step: number | null; state: RunState }
type Dims = number[] | null;
export interface LayerEntry { name: string; type: string | null; parameters: number | null; source: string | null; input_shape?: Dims; output_shape?: Dims }
export interface TreeNode extends LayerEntry { path: string; children: TreeNode[] }
export interface RunDetails extends RunEntry {
  ranks: number[]; damage: string | null; layers: LayerEntry[]; tree: TreeNode[]; metrics: string[]; series: string[]; where: Where;
  checkpoints: { step: number; what: "saved" | "read" | "loaded"; file: string | null; source: string | null }[];
  hits: { step: number; layer: string | null }[]; again?: string; // the command that shows it
}
export interface Where {
  state: RunState; attached: boolean; step?: number | null; layer?: string | null; phase?: string | null;
  source?: string | null; reasons?: string[]; values?: Record<string, Num>;
  heard_s?: number | null; // of a run elsewhere: its last sign of life, in seconds since 1970
}
export interface Suggestion { title: string; patch: string | null; auto: string | null; verified: boolean | null; effect: string | null }
export interface Link { kind: string; layer: string | null; step: number | null; summary: string }
export interface Finding {
  id: string; kind: string; severity: Severity; confidence: number | null; step: number | null;
  last_step: number | null; layer: string | null; source: string | null; summary: string;
  evidence: Record<string, Num | string>; inference: string; chain: Link[]; suggestions: Suggestion[];
}
export interface Verdict {
  state: "healthy" | "warning" | "critical" | "undecided"; headline: string; finding: string | null;
}
export interface Breakpoint {
  id: number; layer_name: string; condition: string | null; phase: string; enabled: boolean; group: string | null;
  once: boolean; hit_count: number; trigger_count: number; last_hit_step: number | null; failed: string | null;
  pending: boolean; layers: string[];
}
export interface Series {
  metric: string; layer: string | null; steps: number[]; min: Num[]; max: Num[]; nan_steps: number[];
  measured?: number | null; of?: number; // steps that have a value, where they are few, and those asked about
  rows?: number; // measured values in all stretches together
}

/** One number for every layer and metric, at one step; NaN where nothing was measured. */
export interface Frame { step: number; layers: string[]; metrics: Record<string, ArrayLike<number>> }
/** All that is shown of a step: every layer in numbers (base64), the one inspected, and when each ran. */
export interface Moment {
  step: number | null; timed_step: number | null; layers: string[]; flops: (number | null)[];
  metrics: Record<string, string>; inspected: (Inspected & { error?: string }) | null; spans: Span[]; scalars?: Record<string, Num>;
}
export interface HeatAnswer {
  metric: string; layers: string[]; edges: number[]; cells: string | Uint8Array; min: number | null; max: number | null;
  log: boolean; measured?: number | null; of?: number;
  sources?: number[] | null; // where a value stands for steps after it: the step that each column is of
}
export interface Inspected {
  layer: string; type: string | null; parameters: number | null; source: string | null; step: number | null;
  latest: Record<string, Num>; history: Record<string, Num>[];
}

/** `counts[i]` of the values looked at have a magnitude of 2^(from + i) to 2^(from + i + 1). */
export interface Octaves { step: number; looked_at: number; zero: number; not_finite: number; from: number; counts: number[] }
export interface HistogramAnswer { kind: string; tensor: string | null; histograms: Octaves[]; ranges?: Record<"min" | "max" | "mean" | "std", Series> }
export interface RankEntry { rank: number; ended: boolean; last_step: number | null; loss: Num; step_time_s: Num; sync_s?: Num; sync_share?: Num; standing?: string | null }
export interface Span { name: string; start: number; end: number; duration: number; depth: number; phase: string }
export interface SlowLayer { layer: string; total_time: number; call_count: number; min_time: number; max_time: number; avg_time: number }
export interface Curve { steps: number[]; time_s: number[]; min: Num[]; max: Num[] }
export interface Resources { cpu: Record<string, Curve>; memory: Record<string, Curve>; gpu: Record<string, Record<string, Curve>> }
export interface AnomalyAnswer {
  samples: number; total: number; unseen_steps?: number; sensitivity: number; layers: { layer: string; count: number; severity: Num }[];
  found: { step: number; layer: string | null; metrics: string[]; methods: string[]; severity: Num }[];
}
export interface CheckAnswer {
  error: string | null; unknown_layer?: boolean; nearest?: string[]; column?: number;
  condition: string; keys: string[]; would_hit: number; looked_at: number; layers: string[];
  steps: [number, number] | null; last: { step: number; layer: string } | null;
}
export interface Tensor {
  shape: number[]; dtype: string; device: string; stats: Record<string, Num> | null;
  histogram: { low: number; high: number; counts: number[] } | null; slice: string | null; slice_shape: number[];
  values: Num[]; cut: boolean; proof?: string;
}
export interface Side {
  id: string; steps: number; duration_s: number | null; state: string; first_loss: Num; final_loss: Num;
  step_time_s: Num; command: string; optimizers: string;
}
export interface AlignedLosses { loss: [number, Num, Num][]; steps: number[]; unknown: string | null }
export interface Comparison {
  a: Side; b: Side; loss: [number, Num, Num][]; loss_differs_from: number | null; only_in_a: string[];
  only_in_b: string[]; changed_params: unknown[]; divergence_searched: boolean;
  divergence: { layer: string; kind: string; step: number; field: string; a: Num; b: Num } | null;
}
export interface Plan { command: string[]; cwd: string; wrote: string[]; tries: { change: string; causes: string[] }[] }
export interface Tried {
  command?: string; trying?: { state: string; doing: string | null; runs: number; error: string | null } | null;
  tried: { control: { loss: Num; updates: number }; notes: string[]; arms: Arm[] } | null;
}
interface Arm {
  intervention: string; verdict: "verified" | "helps" | "no_effect" | "harm"; causes: string[]; patch: string | null;
  metric: { name: string; control: Num; arm: Num }; note: string | null;
}
