// View 4: what is wrong, the evidence as plots, what to try; then the warnings.
import { formatNumber, getJson, h, state } from "/static/base.js";
import { Panel } from "/static/charts.js";
import { extentOf, panelsOf, plain } from "/static/curves.js";

const MOST_PLOTS = 4; // of one finding

export function showDiagnosis(context, content, run) {
  let shown = "", plots = [];
  const name = run.line.id, link = (query) => `#/run?run=${encodeURIComponent(name)}&${new URLSearchParams(query)}`;

  function findingCard(each, metrics) {
    const panels = panelsOf(metrics.filter((metric) => each.metrics.includes(metric.name))).slice(0, MOST_PLOTS);
    const drawn = panels.map((panel) => ({ each: panel, finding: each, panel: new Panel({ title: panel.name, summary: panel.summary, unit: panel.unit, limits: [panel.low, panel.high] }) }));
    plots.push(...drawn);
    const rollout = each.rollouts.find((found) => found.step !== null);
    return h("article", { class: "card finding" },
      h("div", { class: "row" }, h("span", { class: `badge ${each.note ? "" : "bad"}` }, each.cause.replaceAll("_", " ")), h("span", { class: "muted" }, each.certainty), each.began !== null && h("span", { class: "muted" }, `from step ${formatNumber(each.began)} on`)),
      h("p", {}, each.summary), h("ul", { class: "evidence" }, each.evidence.map((line) => h("li", {}, line))),
      each.changes.length ? h("div", { class: "fix" }, h("b", {}, "Try"), h("ul", {}, each.changes.map((line) => h("li", { class: "mono" }, line)))) : "",
      drawn.length ? h("div", { class: "panels" }, drawn.map(({ panel }) => panel.element)) : "",
      rollout ? h("a", { class: "small", href: link({ tab: "rollouts", step: rollout.step }) }, `See the rollouts of step ${formatNumber(rollout.step)}`) : "");
  }

  function warningCard(each) {
    const range = [["below", each.low], ["above", each.high]].map(([word, limit], index) => (typeof limit === "number" && typeof each.value === "number" && (index ? each.value > limit : each.value < limit) ? `${word} ${formatNumber(limit)}` : "")).join("");
    const metric = String(each.reads ?? "").split(" + ")[0];
    return h("article", { class: "card warning" }, h("div", { class: "row" }, h("span", { class: "badge warn" }, each.name ?? "warning"), each.step !== undefined && h("span", { class: "muted" }, `step ${formatNumber(each.step)}`),
      typeof each.value === "number" && h("span", { class: "mono" }, `${each.reads} ${formatNumber(each.value)}${range ? `, ${range}` : ""}`)),
    each.why && h("p", {}, each.why), each.fix && h("p", { class: "fix" }, h("b", {}, "Try: "), each.fix),
    metric && h("a", { class: "small", href: link({ tab: "curves", metric }) }, "See the curve"));
  }

  function layOut({ diagnosis, warnings, metrics }) {
    for (const { panel } of plots) panel.destroy();
    plots = [];
    const found = !diagnosis ? state("empty", "Not diagnosed yet", "A run is diagnosed when it ends. This looks at it now, and at its data:", `ascent diagnose ${name}`)
      : !diagnosis.findings.length ? state("empty", "Nothing found wrong", `No rule applies to the ${formatNumber(diagnosis.step)} steps.`)
        : diagnosis.findings.map((each) => findingCard(each, metrics));
    content.replaceChildren(
      h("section", { class: "stack" }, h("h2", {}, diagnosis ? `Diagnosis after step ${formatNumber(diagnosis.step)}` : "Diagnosis"), found),
      h("section", { class: "stack" }, h("h2", {}, "Warnings"), warnings.length ? [...warnings].reverse().map(warningCard) : h("p", { class: "muted" }, "None.")));
  }

  return async (fresh) => {
    const words = JSON.stringify([fresh.warnings, fresh.diagnosis]);
    if (words === shown) return;
    shown = words;
    layOut(fresh);
    const names = plots.flatMap(({ each }) => each.lines.map((line) => line.name));
    if (!names.length) return;
    const { curves } = await getJson("/api/curves", new URLSearchParams([["run", name], ["points", 600], ...names.map((each) => ["name", each])]));
    if (context.stopped()) return;
    for (const { each, finding, panel } of plots) {
      const drawn = plain(each, curves, fresh, "step");
      if (finding.began !== null) drawn.marks.push({ x: finding.began, text: `${finding.cause} from step ${finding.began} on` });
      panel.update({ axis: "step", extent: extentOf(curves), ...drawn });
    }
  };
}
