// Curves, drawn by uPlot: shared cursor and zoom, warnings as marks, arrow keys for people without a mouse.
import { announce, color, formatDuration, formatNumber, h } from "/static/base.js";

const SYNC = "ascent";
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat(); // between steps
const open = new Set();

/** The color and the dash of the n-th line: eight colors, then the same with dashes. */
export const lineStyle = (index) => ({ token: `--series-${(index % 8) + 1}`, dash: DASHES[Math.floor(index / 8) % DASHES.length] });

export function formatAxis(axis, value) {
  if (axis === "time") return formatDuration(value);
  if (axis === "tokens") return shorten(value);
  return value === null ? "" : formatNumber(value);
}

function shorten(value) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${letter}`;
  return formatNumber(value);
}

/**
 * A panel with a title, the values under the cursor and a chart.
 * lines: [{label, x, y, token, dash, width, faint, low, high, fill}], limits: healthy range, marks: [{x, text}].
 */
export class Panel {
  constructor({ title, summary = "", unit = "", height = 168, limits = [null, null], labels = true }) {
    this.labels = labels;
    this.title = title;
    this.height = height;
    this.limits = limits;
    this.values = h("div", { class: "values" });
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": title, onkeydown: (event) => this.move(event) });
    this.above = h("div", { class: "marks-above" });
    this.note = h("p", { class: "note small", hidden: true });
    this.element = h("figure", { class: "panel card", "data-title": title },
      h("figcaption", { title: summary }, h("span", { class: "name" }, title), unit && h("span", { class: "muted small" }, unit)),
      this.values, h("div", { class: "plot-box" }, this.plot, this.above), this.note);
    this.lines = [];
    this.resize = new ResizeObserver(() => this.chart?.setSize({ width: this.plot.clientWidth, height: this.height }));
    this.resize.observe(this.plot);
    open.add(this);
  }

  update({ lines, axis = "step", marks = [], note = "", extent = null, top = null }) {
    this.extent = extent;
    this.top = top;
    this.axis = axis;
    this.lines = lines;
    this.marks = marks;
    this.note.textContent = note;
    this.note.hidden = !note;
    const shape = JSON.stringify([axis, lines.map((line) => [line.label, line.token, line.faint, line.fill, !!line.low, line.y.length < 40]), Boolean(extent)]);
    const data = this.data();
    if (this.chart && shape === this.shape) this.chart.setData(data, !this.zoomed());
    else this.draw(data);
    this.shape = shape;
    this.describe();
  }

  /** All lines over one axis; a band adds its two edges. */
  data() {
    const tables = [];
    for (const line of this.lines) {
      tables.push(line.low ? [line.x, line.y, line.low, line.high] : [line.x, line.y]);
    }
    if (this.extent) tables.push([this.extent, [null, null]]); // all panels show the same stretch
    return tables.length ? window.uPlot.join(tables) : [[]];
  }

  zoomed() {
    const scale = this.chart.scales.x, x = this.chart.data[0];
    return x.length > 1 && (scale.min > x[0] || scale.max < x[x.length - 1]);
  }

  draw(data) {
    this.chart?.destroy();
    const series = [{}], bands = [];
    for (const line of this.lines) {
      const stroke = color(line.token), few = line.x.length < 40;
      series.push({
        label: line.label, stroke: line.faint ? fade(stroke, 0.28) : stroke, width: line.width ?? 1.6, dash: line.dash ?? [], spanGaps: true,
        fill: line.fill ? stroke : undefined, points: { show: few && !line.faint && !line.fill, size: 4, fill: stroke, stroke },
      });
      if (line.low) {
        const at = series.length;
        for (const edge of ["low", "high"])
          series.push({ label: `${line.label} ${edge}`, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
        bands.push({ series: [at + 1, at], fill: fade(stroke, 0.18) });
      }
    }
    if (this.extent) series.push({ label: "", stroke: "transparent", points: { show: false } });
    const font = `11px ${getComputedStyle(document.body).fontFamily}`, muted = color("--muted"), grid = { stroke: color("--grid"), width: 1 };
    this.chart = new window.uPlot({
      width: Math.max(this.plot.clientWidth, 120), height: this.height, legend: { show: false }, series, bands, padding: [10, 8, 0, 0],
      cursor: { sync: { key: SYNC, setSeries: false }, points: { size: 6 }, drag: { x: true, y: false }, y: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [
        { stroke: muted, font, grid: { show: false }, ticks: { show: false }, size: 22, space: 64, incrs: this.axis === "step" ? WHOLE : undefined, values: (_, ticks) => ticks.map((tick) => formatAxis(this.axis, tick)) },
        { stroke: muted, font, grid, ticks: { show: false }, size: 46, gap: 4, space: 34, values: (_, ticks) => ticks.map((tick) => formatTick(tick)) },
      ],
      hooks: { setCursor: [() => this.show()], drawAxes: [(chart) => this.drawLimits(chart)], draw: [() => this.placeMarks()] },
    }, data, this.plot);
    this.show();
  }

  range(low, high) {
    if (low === null || !Number.isFinite(low)) return [0, 1];
    if (this.top !== null) high = this.top;
    const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  /** The ends of the healthy range, where they are in sight. */
  drawLimits(chart) {
    const context = chart.ctx, { left, width } = chart.bbox;
    for (const limit of this.limits) {
      if (limit === null || limit < chart.scales.y.min || limit > chart.scales.y.max) continue;
      const y = Math.round(chart.valToPos(limit, "y", true)) + 0.5;
      context.save();
      context.strokeStyle = color("--warn");
      context.setLineDash([3, 4]);
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + width, y);
      context.stroke();
      context.restore();
    }
  }

  /** Warnings are buttons above the curve: their text is there for mouse, keyboard and screen reader. */
  placeMarks() {
    this.above.replaceChildren();
    const scale = this.chart.scales.x;
    for (const mark of this.marks ?? []) {
      if (mark.x < scale.min || mark.x > scale.max) continue;
      const button = h("button", { class: "mark", type: "button", "aria-label": mark.text, "data-text": mark.text }, "▲");
      button.style.left = `${this.chart.valToPos(mark.x, "x") + this.chart.over.offsetLeft}px`;
      if (mark.x > (scale.min + scale.max) / 2) button.classList.add("leftward");
      this.above.append(button);
    }
  }

  /** The values under the cursor, or the last ones. */
  show() {
    const chart = this.chart, index = chart?.cursor?.idx;
    const x = chart?.data[0] ?? [];
    const parts = [];
    let column = 0;
    for (const line of this.lines) {
      column += 1;
      if (!line.faint) {
        const shown = line.own ?? line.y; // of a stack, the line's own part
        const value = index === null || index === undefined ? shown[shown.length - 1] : line.own ? line.own[index] : nearest(chart.data[column], index);
        parts.push(h("span", { class: "value" }, swatch(line), this.labels && this.lines.filter((each) => !each.faint).length > 1 && h("span", { class: "muted" }, line.label),
          h("b", { class: "number" }, formatNumber(value))));
      }
      if (line.low) column += 2;
    }
    const at = index !== null && index !== undefined && x.length ? h("span", { class: "muted at" }, `${this.axis} ${formatAxis(this.axis, x[index])}`) : null;
    this.values.replaceChildren(...parts, ...(at ? [at] : []));
  }

  move(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (steps === undefined || !this.chart?.data[0].length || event.target !== this.plot) return;
    event.preventDefault();
    const x = this.chart.data[0], from = this.chart.cursor.idx ?? x.length;
    const index = Math.min(Math.max(from + steps, 0), x.length - 1);
    this.chart.setCursor({ left: this.chart.valToPos(x[index], "x"), top: this.height / 3 });
    announce(`${this.title}, ${this.axis} ${formatAxis(this.axis, x[index])}: ${this.values.textContent}`);
  }

  describe() {
    const line = this.lines.find((each) => !each.faint && each.y.length);
    const last = line ? `last ${formatNumber(line.y[line.y.length - 1])} at ${this.axis} ${formatAxis(this.axis, line.x[line.x.length - 1])}` : "no values yet";
    this.plot.setAttribute("aria-label", `${this.title}: ${last}. Arrow keys read values.`);
  }

  redraw() {
    if (!this.chart) return;
    this.draw(this.data());
  }

  destroy() {
    this.resize.disconnect();
    this.chart?.destroy();
    open.delete(this);
  }
}

/** After a change of theme. */
export function redrawAll() {
  for (const panel of open) panel.redraw();
}

export function destroyAll() {
  for (const panel of [...open]) panel.destroy();
}

/** A line of its color and dash, for legends. */
export function swatch({ token, dash = [] }) {
  const mark = h("span", { class: `swatch${dash.length ? " dashed" : ""}`, "aria-hidden": "true" });
  mark.style.borderColor = `var(${token})`;
  return mark;
}

/** A sparkline as SVG. */
export function sparkline(values, label) {
  const [width, height] = [104, 22];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label })) svg.setAttribute(name, value);
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((value, index) => [(index / Math.max(values.length - 1, 1)) * (width - 6) + 3, height - 4 - ((value - low) / span) * (height - 8)]);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.map((point) => point.map((each) => each.toFixed(1)).join(",")).join(" "));
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  const [x, y] = points[points.length - 1];
  for (const [name, value] of Object.entries({ cx: x, cy: y, r: 1.8 })) dot.setAttribute(name, value);
  svg.append(line, dot);
  return svg;
}

function fade(found, alpha) {
  return found.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}

function formatTick(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace(".0", "").replace("e+", "e").replaceAll("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** The value at an index, or the one before it: lines have points at different places. */
function nearest(values, index) {
  for (let at = index; at >= 0; at--) if (values[at] !== null && values[at] !== undefined) return values[at];
  return null;
}
