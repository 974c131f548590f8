// The same held-out prompt across steps: how its greedy answer changed.
import { formatNumber, getJson, h, segmented, state } from "/static/base.js";

const mark = (value) => (value === null || value === undefined ? h("span", { class: "muted", title: "not scored" }, "·") : value >= 1 ? h("span", { class: "right", title: "right" }, "✓") : h("span", { class: "wrong", title: "wrong" }, "✗"));
const KINDS = { all: () => true, gained: (each) => (each.before ?? 0) < (each.after ?? 0), lost: (each) => (each.before ?? 0) > (each.after ?? 0), changed: (each) => each.changed };

export async function showHeldout(context, content, run) {
  const { query } = context, name = query.get("run");
  const list = h("ul", { class: "prompts card", "aria-label": "Held-out prompts" }), answers = h("div", { class: "stack answers" });
  const text = h("input", { type: "search", placeholder: "Search prompts", "aria-label": "Search prompts", oninput: () => draw() });
  const kinds = segmented("Prompts", [["all", "All"], ["gained", "Now right"], ["lost", "Now wrong"], ["changed", "Changed"]], query.get("kind") ?? "all", (value) => { context.set({ kind: value }); draw(); });
  const note = h("p", { class: "muted small", role: "status" });
  let found = { steps: [], prompts: [] };

  function draw() {
    const shown = found.prompts.filter((each) => KINDS[query.get("kind") ?? "all"](each) && String(each.prompt).toLowerCase().includes(text.value.toLowerCase()));
    note.textContent = `${shown.length} of ${found.prompts.length} prompts, ${found.steps.length} evaluations, steps ${formatNumber(found.steps[0])} to ${formatNumber(found.steps[found.steps.length - 1])}`;
    list.replaceChildren(...(shown.length ? shown.slice(0, 500).map((each) => h("li", {}, h("button", { type: "button", class: "quiet", "aria-pressed": String(String(each.place) === query.get("place")), onclick: () => open(each.place) },
      h("span", { class: "marks" }, mark(each.before), h("span", { class: "muted" }, "→"), mark(each.after)), h("span", { class: "clip", dir: "auto" }, String(each.prompt))))) : [h("li", {}, state("empty", "No prompt matches"))]));
  }

  async function open(place) {
    context.set({ place });
    draw();
    answers.replaceChildren(state("loading"));
    try {
      const { answers: all } = await getJson("/api/heldout", { run: name, place });
      answers.replaceChildren(...timeline(all));
    } catch (error) {
      answers.replaceChildren(state("error", "The answers could not be read", error.message));
    }
  }

  const fresh = async () => {
    found = await getJson("/api/heldout", { run: name });
    if (context.stopped()) return;
    if (!found.prompts.length) return content.replaceChildren(state("empty", "No held-out answers", "Runs with held-out prompts (data.evaluate) log a greedy answer to each at every evaluation."));
    if (!content.contains(list)) content.replaceChildren(h("div", { class: "row" }, kinds, text, note), h("div", { class: "heldout" }, list, answers));
    draw();
    if (!answers.childElementCount) await open(Number(query.get("place") ?? found.prompts.find(KINDS.gained)?.place ?? found.prompts[0].place));
  };
  await fresh();
  let last = run.revision;
  return async (now) => { if (now.revision !== last) { last = now.revision; await fresh(); } };
}

/** The answers in order; equal neighbors are one entry, and words that are new are marked. */
function timeline(all) {
  const entries = [];
  for (const each of all) {
    const previous = entries[entries.length - 1];
    if (previous && previous.completion === each.completion) previous.steps.push(each.step);
    else entries.push({ ...each, steps: [each.step] });
  }
  return [h("div", { class: "prompt", dir: "auto" }, String(all[0]?.prompt ?? "")), ...entries.map((each, index) => h("article", { class: "card answer" },
    h("div", { class: "row" }, mark(each.correct), h("b", { class: "number" }, each.steps.length > 1 ? `steps ${each.steps[0]} to ${each.steps[each.steps.length - 1]}` : `step ${each.steps[0]}`),
      each.steps.length > 1 && h("span", { class: "muted small" }, `the same at ${each.steps.length} evaluations`), h("span", { class: "muted small" }, `reward ${formatNumber(each.reward, 3)}, ended by ${each.stop}`)),
    h("div", { class: "tokens", dir: "auto" }, index ? changed(String(entries[index - 1].completion), String(each.completion)) : String(each.completion))))];
}

/** The text in pieces, those marked that a longest common subsequence of words with the old text does not have. */
function changed(old, text) {
  const before = old.split(/(\s+)/), after = text.split(/(\s+)/);
  if (before.length * after.length > 250_000) return [text];
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) for (let j = after.length - 1; j >= 0; j--) common[i][j] = before[i] === after[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const pieces = [];
  for (let i = 0, j = 0; j < after.length;) {
    if (i < before.length && before[i] === after[j]) { pieces.push(after[j]); i++; j++; }
    else if (i < before.length && common[i + 1][j] >= common[i][j + 1]) i++;
    else pieces.push(h("mark", {}, after[j++]));
  }
  return pieces;
}
