// The curves of a run: panels in the sections of the metric registry, warnings as marks, seconds by phase as a stack.
import { formatNumber, getJson, h, segmented, state } from "/static/base.js";
import { lineStyle, Panel } from "/static/charts.js";

const WINDOWS = [1, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025];
const PHASES = ["time/sample", "time/score", "time/prepare", "time/update", "time/refresh", "time/evaluate", "time/log", "time/save"];

/** The bar above curves: axis, smoothing, a search for metrics. Calls `changed` after every change. */
export function curveControls(context, changed) {
  const { query } = context;
  const label = h("span", { class: "muted number window" });
  const slider = h("input", { type: "range", min: "0", max: String(WINDOWS.length - 1), value: String(Math.max(WINDOWS.indexOf(Number(query.get("window") ?? 1)), 0)), "aria-label": "Smoothing, steps", oninput: () => {
    context.set({ window: WINDOWS[slider.value] });
    tell();
    changed();
  } });
  const tell = () => { label.textContent = slider.value === "0" ? "off" : `mean of ${WINDOWS[slider.value]}`; slider.setAttribute("aria-valuetext", label.textContent); };
  tell();
  const search = h("input", { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric", value: query.get("metric") ?? "", oninput: () => { context.set({ metric: search.value }); changed(); } });
  return h("div", { class: "row controls" },
    segmented("Axis", [["step", "Step"], ["time", "Time"], ["tokens", "Tokens"]], query.get("axis") ?? "step", (value) => { context.set({ axis: value }); changed(); }),
    h("label", {}, h("span", { class: "muted" }, "Smoothing"), slider, label), search);
}

/** Metrics by panel: a held-out metric is a second line in the panel of the same name. */
export function panelsOf(metrics) {
  const panels = new Map();
  for (const metric of metrics) {
    const title = metric.name.replace(/^eval\//, "");
    const panel = panels.get(title) ?? { ...metric, name: title, lines: [] };
    panel.lines.push(metric);
    panels.set(title, panel);
  }
  return [...panels.values()];
}

/** The main metrics in their order, then those that `also` names; the others by their group in the registry. */
export function sectionsOf(panels, also = new Set()) {
  const place = (panel) => panel.plot ?? (also.has(panel.name) ? panels.length : null);
  const main = panels.filter((panel) => place(panel) !== null).sort((a, b) => place(a) - place(b));
  const rest = panels.filter((panel) => place(panel) === null);
  const groups = Map.groupBy(rest, (panel) => panel.group);
  return [["Main", main], ...[...groups].map(([name, list]) => [name, list])].filter(([, list]) => list.length);
}

/** Panels in sections; sections after the first are closed until opened or searched. */
export function drawSections(content, sections, wanted, makePanel, onopen) {
  const live = [];
  content.replaceChildren(...sections.map(([title, list], index) => {
    const found = wanted ? list.filter((panel) => panel.name.includes(wanted)) : list;
    if (!found.length) return "";
    const grid = h("div", { class: "panels" });
    const fill = () => {
      if (grid.childElementCount) return false;
      for (const each of found) { const panel = makePanel(each); live.push({ each, panel }); grid.append(panel.element); }
      return true;
    };
    const box = h("details", { class: "section", open: index === 0 || Boolean(wanted), ontoggle: () => { if (box.open && fill()) onopen(); } },
      h("summary", {}, h("h2", {}, title), h("span", { class: "muted small" }, found.map((each) => each.name.split("/").slice(1).join("/")).slice(0, 6).join(", "))), grid);
    if (box.open) fill();
    return box;
  }).filter(Boolean));
  return live;
}

export async function showCurves(context, content, first) {
  const { query } = context, name = query.get("run");
  const area = h("div", { class: "stack" }), reading = h("p", { class: "muted small", role: "status", hidden: true });
  let run = first, live = [], shape = "";
  const redo = () => { shape = ""; return update(run); };
  content.replaceChildren(curveControls(context, redo), reading, area);

  async function draw() {
    const panels = live, asked = [...live];
    const names = [...new Set(asked.flatMap(({ each }) => each.lines.map((line) => line.name)))], axis = query.get("axis") ?? "step";
    if (!names.length) return;
    const search = new URLSearchParams([["run", name], ["axis", axis], ["window", query.get("window") ?? 1], ["points", 900], ...names.map((each) => ["name", each])]);
    const found = await getJson("/api/curves", search);
    if (context.stopped() || panels !== live) return; // other panels have taken their place, and are drawn by themselves
    reading.hidden = found.complete;
    reading.textContent = `Reading ${Math.round(found.share * 100)}% of a long run; until then the curves are drawn from a part of its steps.`;
    const extent = extentOf(found.curves);
    for (const { each, panel } of asked) panel.update({ axis, extent, ...(each.stack ? stacked(each, found.curves) : plain(each, found.curves, run, axis)) });
    if (!found.complete) setTimeout(() => { if (!context.stopped()) draw(); }, 50);
  }

  async function update(fresh) {
    run = fresh;
    const panels = panelsOf(run.metrics), wanted = query.get("metric") ?? "";
    const now = JSON.stringify([panels.map((panel) => [panel.name, panel.lines.length]), wanted, [...warned(run)]]);
    if (!panels.length) return area.replaceChildren(state("empty", "No step is logged yet", "Curves appear with the first step."));
    if (now !== shape) {
      shape = now;
      for (const { panel } of live) panel.destroy();
      live = drawSections(area, withPhases(sectionsOf(panels, warned(run))), wanted, (each) => new Panel({
        title: each.name, summary: each.summary, unit: each.unit, limits: [each.low, each.high], height: each.stack ? 200 : 168,
      }), () => draw());
    }
    return draw();
  }
  return update;
}

/** The metrics that a warning is about. */
const warned = (run) => new Set(run.warnings.flatMap((each) => String(each.reads ?? "").split(" + ")));

/** The first and the last place of all curves. */
export function extentOf(curves) {
  const ends = Object.values(curves).filter((curve) => curve.x.length).map((curve) => [curve.x[0], curve.x[curve.x.length - 1]]);
  return ends.length ? [Math.min(...ends.map((each) => each[0])), Math.max(...ends.map((each) => each[1]))] : null;
}

/** The seconds by phase as one stacked panel, at the end of the main ones. */
function withPhases(sections) {
  const times = sections.find(([title]) => title === "time")?.[1].filter((panel) => PHASES.includes(panel.name)) ?? [];
  if (times.length < 2) return sections;
  const lines = PHASES.map((phase) => times.find((panel) => panel.name === phase)?.lines.find((line) => !line.heldout)).filter(Boolean);
  return sections.map(([title, list], index) => (index ? [title, list] : [title, [...list, { name: "time by phase", unit: "seconds", summary: "Seconds of a step by phase, stacked.", lines, stack: true, low: null, high: null }]]));
}

/** The lines of a panel, training and held-out, and the warnings on it. */
export function plain(panel, curves, run, axis) {
  const lines = [], notes = [];
  for (const [index, metric] of [...panel.lines].sort((a, b) => a.heldout - b.heldout).entries()) {
    const found = curves[metric.name];
    if (!found?.x.length && !found?.non_finite) continue;
    const style = metric.heldout ? { token: "--series-2", dash: [] } : lineStyle(0), label = metric.heldout ? "held-out" : "training";
    if (found.smooth_x) lines.push({ label: `${label}, every step`, x: found.x, y: found.y, ...style, faint: true, width: 1 });
    lines.push({ label, x: found.smooth_x ?? found.x, y: found.smooth_y ?? found.y, ...style, order: index });
    if (found.non_finite) notes.push(`${found.non_finite} values of ${metric.name} are NaN or infinite`);
  }
  const marks = axis === "step" ? run.warnings.filter((each) => String(each.reads ?? "").split(" + ").includes(panel.name)).map((each) => ({ x: each.step, text: `step ${each.step}, ${each.name}: ${each.why ?? ""} ${each.fix ?? ""}`.trim() })) : [];
  return { lines, marks, note: notes.join("; ") };
}

/** Areas on top of each other: each line is the sum of its own phase and those below. */
function stacked(panel, curves) {
  const base = curves[panel.lines[0].name], sums = base.x.map(() => 0), lines = [];
  for (const [index, metric] of panel.lines.entries()) {
    const found = curves[metric.name];
    const at = (x) => valueAt(found, x);
    base.x.forEach((x, place) => { sums[place] += at(x); });
    lines.push({ label: metric.name.replace("time/", ""), x: base.x, y: [...sums], own: base.x.map(at), ...lineStyle(index), dash: [], fill: true, width: 0.8 });
  }
  const sorted = [...sums].sort((a, b) => a - b), usual = 1.6 * (sorted[Math.floor(sorted.length * 0.9)] ?? 0), top = sorted[sorted.length - 1] > 2 * usual ? usual : null;
  return { lines: lines.reverse(), top, note: top === null ? "" : `The longest step, ${formatNumber(sorted[sorted.length - 1], 3)} s, is beyond the axis.` };
}

/** The value of a curve at a place: its own, or that of the point before; 0 outside of them. */
function valueAt({ x, y }, wanted) {
  if (!x.length || wanted < x[0] || wanted > x[x.length - 1]) return 0;
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (x[middle] <= wanted) low = middle;
    else high = middle - 1;
  }
  return y[low];
}
