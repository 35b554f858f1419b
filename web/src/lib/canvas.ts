/** Drawing on a canvas that keeps its size, its sharpness and its colours when the page changes. */

export interface Drawing { draw: (pen: Pen, width: number, height: number) => void; on: unknown[] } // on: what it depends on

/** Colours by their names in the theme (--accent), or as CSS writes them. */
export class Pen {
  #known: Record<string, string> = {};
  constructor(readonly on: CanvasRenderingContext2D, readonly style: CSSStyleDeclaration) { on.font = "11px system-ui"; }
  ink = (name: string) => (name.startsWith("--") ? (this.#known[name] ??= this.style.getPropertyValue(name).trim()) : name);
  box(ink: string, x: number, y: number, width: number, height: number): void {
    this.on.fillStyle = this.ink(ink);
    this.on.fillRect(x, y, width, height);
  }
  text(ink: string, text: string, x: number, y: number, align: CanvasTextAlign = "left"): void {
    [this.on.fillStyle, this.on.textAlign] = [this.ink(ink), align];
    this.on.fillText(text, x, y);
  }
  line(ink: string, points: [number, number][], wide = 1): void {
    [this.on.strokeStyle, this.on.lineWidth] = [this.ink(ink), wide];
    this.on.beginPath();
    for (const [x, y] of points) this.on.lineTo(x, y);
    this.on.stroke();
  }
}

/** Where in its element something happened, and how large that is. */
export function within(event: MouseEvent): { x: number; y: number; width: number; height: number } {
  const { left, top, width, height } = (event.currentTarget as HTMLElement).getBoundingClientRect();
  return { x: event.clientX - left, y: event.clientY - top, width, height };
}

/** A Svelte action: draws now, when something in `on` changes, and when the canvas gets another size. */
export function drawn(canvas: HTMLCanvasElement, given: Drawing): { update(given: Drawing): void; destroy(): void } {
  let [now, wanted] = [given, 0];
  const paint = () => {
    wanted = 0;
    const { clientWidth: width, clientHeight: height } = canvas;
    const pen = canvas.getContext("2d");
    if (!pen || !width || !height) return;
    const sharp = devicePixelRatio || 1;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    now.draw(new Pen(pen, getComputedStyle(canvas)), width, height);
  };
  const soon = (given = now) => void ([now, wanted] = [given, wanted || requestAnimationFrame(paint)]);
  const resized = new ResizeObserver(() => soon());
  resized.observe(canvas);
  soon();
  return { update: soon, destroy: () => void (cancelAnimationFrame(wanted), resized.disconnect()) };
}
