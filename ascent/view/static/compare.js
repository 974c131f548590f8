// Several runs overlaid: curves with seeds folded into mean and band, and the settings that differ.
import { formatValue, getJson, h, segmented, state } from "/static/base.js";
import { lineStyle, Panel, swatch } from "/static/charts.js";
import { curveControls, drawSections, extentOf, sectionsOf } from "/static/curves.js";
import { runLink } from "/static/runs.js";

export async function showCompare(context) {
  const { main, query } = context, runs = query.getAll("run");
  context.locate(h("a", { href: "#/" }, "Runs"), h("span", { class: "muted" }, " / "), h("span", {}, `Compare ${runs.length}`));
  if (runs.length < 2) return main.replaceChildren(state("empty", "Choose two runs or more", "Tick them in the list of runs, then press Compare."));
  const area = h("div", { class: "stack" }), legend = h("ul", { class: "legend" }), settings = h("div", {});
  const fold = segmented("Seeds", [["false", "Every run"], ["true", "Fold seeds"]], query.get("fold") ?? "true", (value) => { context.set({ fold: value }); shape = ""; draw(); });
  let live = [], shape = "";
  main.replaceChildren(h("div", { class: "stack" }, h("h1", {}, `${runs.length} runs`), settings, h("div", { class: "row spread" }, curveControls(context, () => { shape = ""; return draw(); }), fold), legend, area));

  async function ask(names) {
    const fields = [...runs.map((run) => ["run", run]), ["fold", query.get("fold") ?? "true"], ["axis", query.get("axis") ?? "step"], ["window", query.get("window") ?? 1], ["points", 700], ...names.map((name) => ["name", name])];
    return getJson("/api/compare", new URLSearchParams(fields));
  }

  async function draw() {
    if (!live.length || !shape) {
      const found = await ask([]);
      if (context.stopped()) return;
      const wanted = query.get("metric") ?? "";
      shape = wanted + found.metrics.length;
      settings.replaceChildren(settingsTable(runs, found.settings));
      for (const { panel } of live) panel.destroy();
      // Held-out and training values are panels of their own here: the lines are runs.
      const panels = found.metrics.map((metric) => ({ ...metric, lines: [metric] })).sort((a, b) => a.heldout - b.heldout);
      const kept = panels.map((panel) => ({ ...panel, group: panel.heldout ? "eval" : panel.group }));
      live = drawSections(area, sectionsOf(kept), wanted, (each) => new Panel({ title: each.name, summary: each.summary, unit: each.unit, limits: [each.low, each.high], labels: false }), () => fill());
    }
    return fill();
  }

  async function fill() {
    const panels = live, asked = [...live];
    const found = await ask(asked.map(({ each }) => each.name));
    if (context.stopped() || panels !== live) return;
    legend.replaceChildren(...found.groups.map((group, index) => h("li", {}, swatch(lineStyle(index)), group.runs.length === 1 ? runLink(group.runs[0]) : h("span", { title: group.runs.join("\n") }, group.label))));
    const extent = extentOf(Object.values(found.curves).flat());
    for (const { each, panel } of asked) {
      const lines = found.curves[each.name].map((curve) => ({ ...curve, label: shortLabel(found.groups[curve.group].label), ...lineStyle(curve.group) }));
      panel.update({ lines, extent, axis: query.get("axis") ?? "step" });
    }
    return found;
  }

  let revision = "";
  return context.repeat(async () => {
    const found = revision ? await ask([]) : null;
    if (!found || found.revision !== revision) revision = (await draw())?.revision ?? found?.revision ?? "";
    return found && !found.complete ? 50 : 1500;
  });
}

const shortLabel = (label) => label.split("/").slice(-2).join("/");

function settingsTable(runs, rows) {
  if (!rows.length) return h("p", { class: "muted" }, "All recorded settings are the same.");
  return h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Settings that differ" }, h("table", { class: "settings narrow" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting that differs"), runs.map((run) => h("th", { scope: "col", title: run }, shortLabel(run))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row", class: "mono" }, row.key), row.values.map((value) => h("td", { class: "mono" }, formatValue(value))))))));
}
