// What every page shares: elements, requests, states, numbers. Text from runs and models only ever becomes text nodes.

/** An element: h("p", {class: "muted", onclick: f}, "text", child). Strings become text nodes, never HTML. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** JSON of the server. Errors carry the server's own words and its status; none where it did not answer. */
export async function getJson(path, query = {}) {
  return request(`${path}?${new URLSearchParams(query)}`, {});
}

export async function postJson(path, content) {
  return request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content) });
}

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer. Is the command still running?");
  }
  if (response.ok) return response.json();
  const text = await response.text();
  let words = text;
  try { words = JSON.parse(text).error ?? text; } catch { /* plain text */ }
  throw Object.assign(new Error(words || `The server answered ${response.status}.`), { status: response.status });
}

/** A designed state in place of content. kind: "empty", "error" or "loading". */
export function state(kind, title = "", detail = "", command = "") {
  if (kind === "loading") return h("div", { class: "loading", role: "status", "aria-label": title || "loading" });
  return h("div", { class: `message ${kind}`, role: kind === "error" ? "alert" : null },
    h("h2", {}, title), detail && h("p", {}, detail), command && h("pre", {}, command));
}

/** Say something to screen readers. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

/** A number in about four digits, as one reads it. */
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US").replace("-", "−");
  const size = Math.abs(value);
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const text = size !== 0 && (size < 1e-3 || size >= 1e7) ? `${Number(mantissa)}e${Number(exponent)}` : String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

/** A setting as it is written in a recipe. */
export function formatValue(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  const hours = Math.round(seconds / 360) / 10;
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} d`;
}

/** The button that switches between the system's theme, light and dark. onchange runs after a switch. */
export function themeButton(onchange = () => {}) {
  const names = ["system", "light", "dark"];
  const current = () => document.documentElement.dataset.theme ?? "system";
  const button = h("button", { class: "quiet", type: "button", onclick: () => {
    const next = names[(names.indexOf(current()) + 1) % names.length];
    if (next === "system") { delete document.documentElement.dataset.theme; localStorage.removeItem("ascent-theme"); }
    else { document.documentElement.dataset.theme = next; localStorage.setItem("ascent-theme", next); }
    show();
    onchange();
  } });
  const show = () => {
    button.textContent = { system: "◐", light: "☀", dark: "☾" }[current()];
    button.title = `Theme: ${current()}`;
    button.setAttribute("aria-label", button.title);
  };
  show();
  return button;
}

/** A computed color of a token such as "--accent", for canvases. */
export function color(token) {
  const probe = document.getElementById("announce");
  probe.style.color = `var(${token})`;
  const found = getComputedStyle(probe).color;
  probe.style.color = "";
  return found;
}

/** Buttons of which one is pressed. options: [[value, label], ...]. */
export function segmented(name, options, value, onchange) {
  const buttons = options.map(([each, label]) => h("button", {
    type: "button", "aria-pressed": String(each === value), "data-value": each,
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === String(each)));
      onchange(each);
    },
  }, label));
  return h("div", { class: "segmented", role: "group", "aria-label": name }, buttons);
}
