/** Drawing on a canvas that keeps its size, its sharpness and its colours when the page changes. */

export type Draw = (pen: CanvasRenderingContext2D, width: number, height: number, colour: (name: string) => string) => void;
export interface Drawing { draw: Draw; on: unknown[] } // on: what it depends on

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
    const style = getComputedStyle(canvas);
    const known: Record<string, string> = {};
    now.draw(pen, width, height, (name) => (known[name] ??= style.getPropertyValue(name).trim()));
  };
  const soon = (given = now) => void ([now, wanted] = [given, wanted || requestAnimationFrame(paint)]);
  const resized = new ResizeObserver(() => soon());
  resized.observe(canvas);
  soon();
  const destroy = () => {
    cancelAnimationFrame(wanted);
    resized.disconnect();
  };
  return { update: soon, destroy };
}
