import { type Address, read, tried, type View, written } from "./address";
import { ask, query, Refused, send } from "./api";
import { Asked, RETRY_MS } from "./asked.svelte";
import type { Mark, Stretch } from "./chart";
import { count, real, short, words } from "./numbers";
import { frameOf, listen, type Message } from "./stream";
import type { Breakpoint, Finding, Frame, Moment, RunDetails, RunEntry, Series, Settings, Verdict, Where } from "./types";

const NONE: Settings = { theme: "dark", refresh_s: 1, max_history: 1000, history: 100, charts: [], version: "" };
const MOST_HITS = 1000;
const SLOWLY_S = 2; // panels that read much of the run follow it no faster
const LONG_AGO = 20; // steps
const RESTS_MS = 250; // from then on a scrubber stands still
const INSPECT: View[] = ["overview", "layer"]; // views with the inspector, and with the flame graph
const TIME: View[] = ["overview", "performance", "execution-trace"];

/** Everything the page knows: one run, where in it we look, and what is on the screen. */
export class Session {
  settings = $state.raw<Settings>(NONE);
  runs = $state.raw<RunEntry[]>([]);
  run = $state.raw<RunDetails | null>(null);
  where = $state.raw<Where>({ state: "running", attached: false });
  findings = $state.raw<Finding[]>([]);
  verdict = $state.raw<Verdict | null>(null);
  breakpoints = $state.raw<Breakpoint[]>([]);
  newest = $state.raw<Frame | null>(null); // of the stream
  lastStep = $state<number | null>(null);
  slowStep = $state<number | null>(null); // as lastStep, seldom enough for panels that ask for much
  losses = $state.raw<{ step: number; value: number | null }[]>([]);
  broke = $derived(this.losses.find((one) => one.value !== null && !Number.isFinite(one.value)) ?? null); // the first loss that is no number
  whole = $state(false); // every loss is among them, not only the largest of each stretch of steps
  lastLoss = $state<number | null>(null); // of the stream
  hits = $state.raw<Mark[]>([]);
  connected = $state(false);
  gone = $state(false); // the server: it said so, or has not answered for a while
  ended = $state(false); // by somebody at this page
  broken = $state<string | null>(null); // why nothing can be shown
  said = $state(""); // for those who listen instead of looking
  told = $state.raw<{ text: string; sign: "✔" | "○" | "✖" } | null>(null); // what became of the last action
  stood = $state<string | null>(null); // the layer of the last pause: shown where nobody has chosen another
  address = $state<Address>(read(location.search));
  theme = $state<"dark" | "light">("dark");
  #layers: string[] = [];
  #slowSince = 0;
  #stop: (() => void) | null = null;
  #turn = 0;
  #judging: ReturnType<typeof setTimeout> | undefined;

  view = $derived(this.address.view);
  name = $derived(this.address.run);
  live = $derived(this.address.step === null);
  step = $derived(this.address.step ?? this.lastStep ?? 0); // what every panel shows
  settled = $state(this.address.step); // the step chosen, once its own numbers are there
  rested = $state(this.address.step); // the step chosen, once the scrubber stands still: for what takes seconds
  layer = $derived(this.address.layer ?? this.stood ?? this.run?.layers.find((one) => one.parameters)?.name ?? this.run?.layers[0]?.name ?? null);
  names = $derived(this.run?.layers.map((one) => one.name) ?? []);
  points = $derived(Math.min(this.settings.max_history, 500)); // of a chart; the loss has all that max_history allows
  paused = $derived(this.where.state === "paused");
  over = $derived(this.gone || (this.where.state !== "running" && this.where.state !== "paused"));
  pausedAt = $derived(this.names.includes(this.where.layer ?? "") ? null : (this.where.layer ?? null)); // null: followed without being chosen
  loud = $derived(this.findings.filter((one) => one.severity !== "info"));
  #foundByNow = $derived(this.loud.filter((one) => (one.step ?? 0) <= this.step).length);
  found = $derived([...this.loud].sort((a, b) => (a.step ?? 0) - (b.step ?? 0)).slice(0, this.#foundByNow)); // by the step shown; the same list until there is one more

  // the step that was chosen, or now and then the newest, with everything that is shown of it
  moment: Asked<Moment>;
  past = $derived.by(() => {
    const { step = null, metrics = {}, layers = [] } = this.moment.data ?? {};
    return step === null ? null : frameOf({ step, metrics }, layers);
  });
  frame = $derived(this.live && this.newest && this.past?.step !== this.newest.step ? this.newest : this.past);
  loss = $derived.by(() => {
    if (this.live && !this.over && this.lastLoss !== null) return this.lastLoss;
    const found = this.whole ? this.losses.findLast((one) => one.step <= this.step) : null;
    if (found?.step === this.step) return found.value;
    return this.moment.loading ? null : real(this.moment.data?.scalars?.["loss"]);
  });

  constructor() {
    let moment: Asked<Moment> | undefined;
    $effect.root(() => {
      moment = new Asked<Moment>(() => this.question);
      $effect(() => {
        const step = this.address.step;
        if (!moment!.loading) this.settled = step;
        const timer = setTimeout(() => (this.rested = step), RESTS_MS);
        return () => clearTimeout(timer);
      });
    });
    this.moment = moment!;
  }

  get question(): string | null {
    const [step, layer] = [this.address.step ?? (this.over ? null : this.slowStep), INSPECT.includes(this.view) ? this.layer : null];
    return this.run && this.path("/api/moment", { step, layer, spans: TIME.includes(this.view) || null });
  }

  get marks(): Mark[] {
    const marks: Mark[] = this.loud.filter((one) => one.step !== null).map((one) => ({ step: one.step!, kind: "finding", label: `step ${one.step}: ${one.summary}` }));
    const saved = (this.run?.checkpoints ?? []).map(({ step, what, file, source }): Mark => ({ step, kind: "checkpoint", label: `step ${step}: checkpoint ${what}${file ? ` (${file})` : ""}${source ? `, ${source}` : ""}` }));
    return [...marks, ...saved, ...this.hits];
  }

  // -- beginning and changing the run ---------------------------------------------------------------------------------
  async start(): Promise<void> {
    try {
      this.settings = await ask<Settings>("/api/settings");
      this.setTheme(chosenTheme(this.settings.theme), false);
      this.runs = (await ask<{ runs: RunEntry[] }>("/api/runs")).runs;
      await this.open((this.runs.find((one) => one.name === this.address.run) ?? this.runs[0])?.name ?? null);
      this.broken = null;
    } catch (error) {
      this.broken = error instanceof Refused ? error.message : "the server does not answer; is it still running?";
      setTimeout(() => void this.start(), RETRY_MS);
    }
  }

  /** The address of before, by the browser's own button: perhaps that of another run. */
  back(address: Address): void {
    const other = address.run !== this.address.run;
    this.address = address;
    if (other) void this.open(address.run ?? this.runs[0]?.name ?? null);
  }

  async open(name: string | null): Promise<void> {
    const turn = (this.#turn += 1); // somebody may choose another one meanwhile
    this.#stop?.();
    Object.assign(this, { run: null, findings: [], verdict: null, newest: null, losses: [], hits: [], breakpoints: [], lastStep: null, slowStep: null, lastLoss: null, stood: null });
    const same = this.#stop === null || name === this.address.run; // the first run comes with the address
    this.go({ run: this.runs.length > 1 ? name : null, ...(same ? {} : { layer: null, step: null, finding: null }) });
    try {
      await this.readRun();
    } catch {
      if (turn === this.#turn) setTimeout(() => turn === this.#turn && void this.open(name), RETRY_MS);
      return;
    }
    if (turn !== this.#turn) return;
    let known = true; // what is read below
    this.#stop = listen(this.name, {
      message: (message) => this.hear(message),
      connected: (yes, gone) => {
        [this.connected, this.gone] = [yes, gone];
        if (gone) this.where = { ...this.where, attached: false };
        if (yes && !known) void this.resume();
        known = yes;
      },
      lastStep: () => this.lastStep,
    });
    void this.readVerdict();
    void this.readBreakpoints();
  }

  /** The server was gone and is there again, or another one in its place: what was missed, or the run that it has. */
  async resume(): Promise<void> {
    const before = this.run?.name;
    this.runs = (await ask<{ runs: RunEntry[] }>("/api/runs").catch(() => null))?.runs ?? this.runs;
    if (!this.runs.some((one) => one.name === before)) return this.open(this.runs[0]?.name ?? null);
    await this.readRun();
    await Promise.all([this.readVerdict(), this.readBreakpoints()]);
  }

  async readRun(): Promise<void> {
    const name = this.name;
    const run = await ask<RunDetails>(this.path("/api/run"));
    if (name !== this.name) return;
    this.run = run;
    this.where = run.where;
    if (this.paused && this.pausedAt === null) this.stood = run.where.layer ?? null;
    this.#hit(run.hits); // before this page was opened
    this.grow(run.last_step);
    if ((this.address.step ?? 0) > (run.last_step ?? 0)) this.goto(this.address.step); // an address may name what the run never had
    document.title = `${run.name} · NeuralDbg`;
    await this.readLoss();
  }

  /** An answer about this run; null where there is none, or where another run was chosen meanwhile. */
  async #told<T>(path: string, given: Parameters<typeof query>[1] = {}): Promise<T | null> {
    const name = this.name;
    const found = await ask<T>(this.path(path, given)).catch(() => null);
    return name === this.name ? found : null;
  }

  async readLoss(): Promise<void> {
    const loss = this.run?.series.includes("loss") && (await this.#told<Series>("/api/series", { metric: "loss", points: this.settings.max_history }));
    if (!loss) return;
    const broken = new Set(loss.nan_steps);
    this.whole = loss.rows === loss.steps.length;
    this.losses = loss.steps.map((step, at) => ({ step, value: broken.has(step) ? NaN : real(loss.max[at]) }));
  }

  #hit(more: RunDetails["hits"]): void {
    const all = [...this.hits, ...more.map(({ step, layer }): Mark => ({ step, kind: "hit", label: `step ${step}: breakpoint hit at ${layer ?? "the step"}` }))];
    const each = new Map(all.map((mark) => [mark.label, mark])); // the stream and the run may both tell of one
    this.hits = [...each.values()].sort((a, b) => a.step - b.step).slice(-MOST_HITS);
  }

  async readVerdict(): Promise<void> {
    const verdict = await this.#told<Verdict>("/api/verdict");
    const found = await this.#told<{ findings: Finding[] }>("/api/findings");
    if (!verdict || !found) return;
    if (verdict.state !== this.verdict?.state) this.said = `Verdict: ${verdict.state}. ${verdict.headline}`;
    this.verdict = verdict;
    this.findings = found.findings;
  }

  async readBreakpoints(): Promise<void> {
    if (!this.where.attached) return;
    const found = await this.#told<Record<string, { breakpoints: Breakpoint[] }>>("/api/breakpoint");
    if (found) this.breakpoints = Object.values(found).flatMap((one) => one.breakpoints).sort((a, b) => a.id - b.id);
  }

  // -- the stream -----------------------------------------------------------------------------------------------------
  hear(message: Message): void {
    if (message.type === "layers") {
      this.#layers = message.layers;
      if (this.run && this.run.layers.length !== message.layers.length) void this.readRun();
    } else if (message.type === "frame" || message.type === "step") {
      if (message.type === "frame") this.newest = frameOf(message, this.#layers);
      this.grow(Math.max(message.last_step, this.lastStep ?? 0));
      const loss = real(message.scalars["loss"]);
      if (loss !== null && message.step >= (this.losses.at(-1)?.step ?? -1)) this.lastLoss = loss; // a frame may be of long ago
      if (loss !== null && message.step > (this.losses.at(-1)?.step ?? -1)) {
        this.losses = [...this.losses.slice(0, this.settings.max_history - 1), { step: message.step, value: loss }];
      }
    } else if (message.type === "state") this.changed(message);
    else if (message.type === "hit" || message.type === "breakpoints") {
      if (message.type === "hit") this.#hit([message]);
      void this.readBreakpoints();
    } else if (message.type === "finding") {
      const known = message.finding && this.findings.some((one) => one.id === message.finding?.id);
      if (message.finding && !known && message.finding.severity !== "info") this.said = `Found: ${message.finding.summary}`;
      clearTimeout(this.#judging); // many come together when a page opens
      this.#judging = setTimeout(() => void this.readVerdict(), 100);
    }
  }

  changed(now: Where): void {
    const before = this.where;
    this.where = now;
    if (now.state === "paused" && (before.state !== "paused" || before.layer !== now.layer || before.step !== now.step || before.phase !== now.phase)) {
      this.said = `Paused at ${now.layer ?? "the end of the step"}, step ${now.step}`;
      if (this.pausedAt === null) this.stood = now.layer ?? null;
      void this.readBreakpoints();
    } else if (now.state !== before.state) this.said = `The run is ${now.state}`;
    if (before.state !== now.state && this.over) void this.readRun().then(() => this.readVerdict());
    if (now.step !== undefined && now.step !== null) this.grow(Math.max(now.step, this.lastStep ?? 0));
  }

  grow(last: number | null): void {
    this.lastStep = last;
    const now = performance.now();
    if (this.slowStep === null || this.over || now - this.#slowSince > 1000 * Math.max(SLOWLY_S, this.settings.refresh_s)) {
      this.slowStep = last;
      this.#slowSince = now;
      if (this.newest && !this.over) void (this.run?.series.includes("loss") ? this.readLoss() : this.readRun());
    }
  }

  /** Of which step values are, `loud` where that is not the one chosen. `grave`: the loss broke between the two. */
  behind(of: number | null | undefined): { text: string; loud: boolean; grave: boolean } | null {
    if (of === null || of === undefined) return null;
    if (of === this.step || this.settled !== this.address.step) return { text: `values of step ${count(of)}`, grave: false, loud: false };
    const since = this.broke && of < this.broke.step && this.step >= this.broke.step ? this.broke : null;
    const ago = this.step - of > LONG_AGO ? `, ${count(this.step - of)} steps ago` : ""; // a run that goes on is always a little ahead
    const rest = since ? `, before the loss was ${short(since.value)}` : this.live ? ago : `, not of step ${count(this.step)}`;
    return { text: `values of step ${count(of)}${rest}`, grave: since !== null, loud: since !== null || !this.live };
  }

  /** The numbers that tell how well layers are: none where the loss broke after them. */
  judged = (frame: Frame | null): Frame | null => (this.behind(frame?.step)?.grave ? null : frame);

  // -- what a person does ---------------------------------------------------------------------------------------------
  path = (path: string, given: Parameters<typeof query>[1] = {}): string => query(path, { ...given, run: this.name });

  /** What is asked about all steps up to one; null: to the newest, of a run that goes on now and then again. */
  upTo(step: number | null, path: string, given: Parameters<typeof query>[1] = {}): string {
    return `${this.path(path, { ...given, to: step })}#${this.over || step !== null ? "" : this.slowStep}`;
  }

  curve(metric: string, layer: string, shown: Partial<Stretch> = { to: this.slowStep ?? undefined }): string {
    return this.path("/api/series", { metric, layer, points: this.points, ...shown });
  }

  go(change: Partial<Address>): void {
    this.address = { ...this.address, ...change };
    tried(() => history[change.view ? "pushState" : "replaceState"](null, "", location.pathname + written(this.address)));
  }

  show(view: View, change: Partial<Address> = {}): void {
    this.go({ ...change, view });
    scrollTo({ top: 0 });
  }

  /** null follows the newest step. */
  goto(step: number | null): void {
    const last = this.lastStep ?? 0;
    this.go({ step: step === null ? null : Math.min(Math.max(0, Math.round(step)), last) });
  }

  nextLayer(by: number): void {
    const at = this.names.indexOf(this.layer ?? "");
    const next = this.names[Math.min(Math.max(at + by, 0), this.names.length - 1)];
    if (next) this.go({ layer: next });
  }

  nextFinding(): void {
    const steps = [...new Set(this.marks.filter((one) => one.kind === "finding").map((one) => one.step))].sort((a, b) => a - b);
    const next = steps.find((step) => !this.live && step > this.step) ?? steps[0];
    if (next !== undefined) this.goto(next);
    else this.tell("No finding to go to", "○");
  }

  async control(verb: "pause" | "continue" | "step" | "abort", unit?: "layer" | "step"): Promise<void> {
    if (!this.where.attached) return this.tell("No training process is attached to this run", "✖");
    if (verb !== "abort" && (verb === "pause") === this.paused) return this.tell(this.paused ? "Already paused" : "Not paused: p pauses", "○");
    // the stream tells the new state: the one in the answer may be older than what it has told already
    const done = await this.act(async () => (await send<{ message: string }>("POST", this.path(`/api/${verb}`), unit ? { unit } : {})).message);
    this.ended ||= done && verb === "abort";
  }

  /** Does something that may be refused, and says what became of it. */
  async act(action: () => Promise<string>): Promise<boolean> {
    try {
      this.tell(await action());
      return true;
    } catch (error) {
      this.tell(error instanceof Refused ? error.message : "the server does not answer", "✖");
      return false;
    }
  }

  /** Adds, changes or removes a breakpoint; `which` is the rest of the route. */
  async edit(method: "POST" | "PATCH" | "DELETE", which: string, body: object = {}): Promise<boolean> {
    const done = await this.act(async () => (await send<{ message: string }>(method, this.path(`/api/breakpoint${which}`), body)).message);
    await this.readBreakpoints();
    return done;
  }

  copy(text: string, said: string): void {
    const copied = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error()); // a page of another machine has none
    copied.then(() => this.tell(said), () => this.tell("This browser lets no page copy: select the text", "✖"));
  }

  breakAt = (layer: string) => this.edit("POST", "", { layer_name: layer });

  setTheme(theme: "dark" | "light", keep = true): void {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    if (keep) tried(() => localStorage.setItem("neuraldbg.theme", theme));
  }

  /** What failed stays until somebody has read it. */
  tell(text: string, sign: "✔" | "○" | "✖" = "✔"): void {
    const mine = (this.told = { text, sign });
    if (sign !== "✖") setTimeout(() => this.told === mine && (this.told = null), 5000);
  }
}

/** What the person chose on this page before counts more than the configuration. */
function chosenTheme(configured: Settings["theme"]): "dark" | "light" {
  const kept = tried(() => localStorage.getItem("neuraldbg.theme"));
  if (kept === "dark" || kept === "light") return kept;
  if (configured !== "auto") return configured;
  return matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
}

export const session = new Session();
export const titleOf = (kind: string): string => words(kind).replace(/^./, (first) => first.toUpperCase());
