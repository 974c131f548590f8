// The page on which people judge answers. A verdict is sent, and the next question is shown when it is on disk.
// Prompts and answers only ever become text nodes.

import { announce, formatNumber, getJson, h, postJson, state, themeButton } from "/static/base.js";
import { keyed, pairs, rankings, ratings } from "/static/label_forms.js";

const FORMS = { pairs, rankings, ratings };
const LONG = 6000; // characters from which an answer gets a scroll bar of its own
const PAUSE = 250; // milliseconds in which a second press cannot judge a question that was not seen yet
const RETRY = 1000;
const DRAFT = "ascent-label-draft";

const top = document.getElementById("top");
const main = document.getElementById("main");
const dialogs = { guidelines: document.getElementById("guidelines"), keys: document.getElementById("keys") };
const settings = await getJson("/api/session");
let annotator = new URLSearchParams(location.search).get("annotator") ?? "";
let current = null; // the server's last state
let form = null;
let comment = null;
let shownAt = 0;
let busy = false;
let poll = 0;

const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/* The top line */

const progress = h("progress", { "aria-label": "Progress", max: 1, value: 0 });
const count = h("span", { class: "number nowrap", id: "count" });
const undoButton = keyed("U", "Undo", () => undo(), { class: "quiet", id: "undo" });
const guideButton = settings.guidelines && keyed("G", "Guidelines", () => dialogs.guidelines.showModal(), { class: "quiet", id: "guide" });
const keysButton = h("button", { type: "button", class: "quiet wide", onclick: () => dialogs.keys.showModal(), "aria-label": "Keys" }, h("kbd", {}, "?"));
const nameButton = h("button", { type: "button", class: "quiet name", onclick: () => askName(), title: "Judge under another name" });
top.append(
  h("span", { class: "brand" }, "Ascent"), h("span", { class: "where muted" }, "Label"),
  count, guideButton || "", undoButton, keysButton, nameButton, themeButton(), progress,
);
for (const link of dialogs.guidelines.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });

function showTop() {
  const open = current !== null;
  for (const each of [count, guideButton, undoButton, keysButton, nameButton, progress]) if (each) each.hidden = !open;
  if (!open) return;
  const total = current.done + current.left;
  count.textContent = `${formatNumber(current.done)} of ${formatNumber(total)}`;
  progress.value = total ? current.done / total : 1;
  undoButton.disabled = busy || current.done === 0;
  nameButton.textContent = current.annotator;
}

/* Who judges */

function askName(problem = "") {
  current = form = null;
  clearTimeout(poll);
  showTop();
  const names = settings.annotators;
  const input = h("input", { type: "text", id: "name", name: "name", autocomplete: "nickname", maxlength: 64, required: true, value: annotator });
  const enter = (name) => { annotator = name; load(true); };
  main.replaceChildren(h("form", { class: "card ask-name", onsubmit: (event) => { event.preventDefault(); enter(input.value); } },
    h("h1", {}, "Who is judging?"),
    h("p", { class: "muted" }, "Your name is written next to your verdicts."),
    problem && h("p", { class: "banner error", role: "alert" }, problem),
    names.length
      ? h("div", { class: "row" }, names.map((name) => h("button", { type: "button", onclick: () => enter(name) }, name)))
      : h("div", { class: "row" }, h("label", { for: "name", class: "visually-hidden" }, "Your name"), input, h("button", { class: "primary" }, "Start")),
  ));
  (names.length ? main.querySelector("button") : input).focus();
}

/* A question */

/** Text of a model or a prompt: its own direction, its own lines, a scroll bar where it is very long. */
function modelText(text, name) {
  const body = h("div", { class: "text", dir: "auto" }, text);
  if (text.length <= LONG) return [body];
  body.classList.add("long");
  Object.entries({ tabindex: "0", role: "region", "aria-label": name }).forEach(([key, value]) => body.setAttribute(key, value));
  const more = h("button", { type: "button", class: "quiet more", "aria-expanded": "false", onclick: () => {
    const open = body.classList.toggle("open");
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Show less" : `Show all ${formatNumber(text.length)} characters`;
  } }, `Show all ${formatNumber(text.length)} characters`);
  return [body, more];
}

function showQuestion(undone) {
  const { ticket, messages, answers } = current.question;
  form = FORMS[settings.form](answers.length, (word, numbers) => judge(word, numbers), saveDraft, settings.scale);
  comment = h("textarea", { rows: 1, maxlength: 10000, placeholder: "Comment (optional)", "aria-label": "Comment", oninput: saveDraft });
  const all = answers.length === 2 ? "Both bad" : "All bad";
  const prompt = messages.map(({ role, content }) => h("div", { class: `turn ${role}` },
    h("h2", {}, messages.length === 1 && role === "user" ? "Prompt" : role), modelText(content, role)));
  const cards = answers.map((text, index) => h("article", { class: "card answer", "aria-labelledby": `answer-${index + 1}` },
    h("div", { class: "head row spread" }, h("h2", { id: `answer-${index + 1}` }, `Answer ${index + 1}`), form.beside(index)),
    modelText(text, `Answer ${index + 1}`)));
  main.replaceChildren(
    h("h1", { class: "visually-hidden" }, `Question ${current.done + 1}`),
    h("section", { class: "card prompt", "aria-label": "Prompt" }, prompt),
    h("div", { class: `answers ${settings.form}`, "data-count": answers.length }, cards),
    h("div", { class: "verdict", role: "region", "aria-label": "Verdict" },
      h("div", { id: "problem" }), form.bar,
      h("div", { class: "extras" }, comment,
        keyed("B", all, () => judge("both_bad", []), { class: "quiet", "data-verdict": "both_bad" }),
        keyed("S", "Skip", () => judge("skip", []), { class: "quiet", "data-verdict": "skip" }))),
  );
  const draft = undone ?? readDraft(ticket);
  if (draft?.numbers?.length === answers.length) form.restore(draft.numbers);
  comment.value = draft?.comment ?? "";
  form.shown?.();
  shownAt = performance.now();
  listKeys(all);
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  announce(`${undone ? "Taken back. " : ""}Question ${current.done + 1} of ${current.done + current.left}`);
}

function listKeys(all) {
  const rest = [["B", all.toLowerCase()], ["S", "skip"], ["C", "comment; Esc leaves it"], ["U", "undo"], settings.guidelines && ["G", "guidelines"], ["?", "these keys"]];
  document.getElementById("keys-list").replaceChildren(...[...form.keys, ...rest.filter(Boolean)].flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]));
}

function showEnd() {
  form = null;
  const [title, detail] = current.left
    ? ["Nothing to judge right now", "The last questions are open on other annotators' pages. They come here if they are not judged within ten minutes."]
    : ["All done. Thank you!", `You have judged ${formatNumber(current.done)} questions. Every verdict is saved; you can close this page.`];
  main.replaceChildren(state("empty", title, detail), h("div", { id: "problem" }));
  if (current.left) poll = setTimeout(() => load(), 5000);
  announce(title);
}

/* Talking to the server */

function setBusy(now, chosen = "") {
  busy = now;
  main.setAttribute("aria-busy", String(now));
  for (const button of main.querySelectorAll("[data-verdict]")) button.classList.toggle("chosen", now && button.dataset.verdict === chosen);
  showTop();
}

function complain(text, kind = "error") {
  const line = h("p", { class: `banner ${kind}`, role: "alert" }, text);
  document.getElementById("problem")?.replaceChildren(...(text ? [line] : []));
}

/** Repeat a request until the server answers. It may have been restarted: verdicts and undo may be sent twice. */
async function persist(request) {
  for (;;) {
    try {
      return await request();
    } catch (error) {
      if (error.status !== undefined) throw error;
      complain("The server does not answer. This page keeps your work and tries again.", "");
      await wait(RETRY);
    }
  }
}

function show(found) {
  clearTimeout(poll);
  current = found;
  annotator = found.annotator;
  history.replaceState(null, "", `?${new URLSearchParams({ annotator })}`);
  setBusy(false);
  if (found.question) showQuestion(found.undone);
  else showEnd();
}

async function load(first = false) {
  try {
    show(await persist(() => getJson("/api/question", { annotator })));
    if (first && settings.guidelines && current.done === 0 && current.question) dialogs.guidelines.showModal();
  } catch (error) {
    askName(error.message);
  }
}

async function change(path, content, chosen) {
  setBusy(true, chosen);
  complain("");
  try {
    show(await persist(() => postJson(path, { annotator, ...content })));
  } catch (error) {
    if (error.status === 409) await load();
    else setBusy(false);
    complain(error.message, error.status === 409 ? "" : "error");
  }
}

async function judge(verdict, numbers) {
  if (busy || performance.now() - shownAt < PAUSE) return;
  await change("/api/judge", { ticket: current.question.ticket, verdict, numbers, comment: comment.value }, verdict);
}

async function undo() {
  if (busy || !current || current.done === 0) return;
  await change("/api/undo", { done: current.done });
}

/* What is typed and not yet sent survives a closed browser */

function saveDraft() {
  const draft = { ticket: current.question.ticket, annotator, comment: comment.value, numbers: form.draft() };
  try { localStorage.setItem(DRAFT, JSON.stringify(draft)); } catch { /* storage is full or switched off */ }
}

function readDraft(ticket) {
  try {
    const draft = JSON.parse(localStorage.getItem(DRAFT));
    return draft?.ticket === ticket && draft.annotator === annotator ? draft : null;
  } catch {
    return null;
  }
}

/* Keys */

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat || !current) return;
  const name = event.key.toLowerCase();
  const typing = event.target.matches("textarea, input");
  if (typing && (name === "escape" || (name === "enter" && !event.shiftKey))) { event.preventDefault(); main.focus({ preventScroll: true }); }
  if (typing) return;
  const open = Object.values(dialogs).find((dialog) => dialog.open);
  if (open) { if (name === "g" || name === "?") open.close(); return; }
  if (event.target.matches("button") && (name === "enter" || name === " ")) return;
  const commands = { u: undo, g: () => settings.guidelines && dialogs.guidelines.showModal(), "?": () => dialogs.keys.showModal() };
  const inQuestion = { c: () => comment.focus(), b: () => judge("both_bad", []), s: () => judge("skip", []) };
  if (name in commands) commands[name]();
  else if (!form || busy) return;
  else if (name in inQuestion) inQuestion[name]();
  else if (!form.key(name)) return;
  event.preventDefault();
});

showTop();
if (annotator) await load(true);
else askName();
