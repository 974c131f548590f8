// The page over run folders: which view the address names, and the bar above it.
import { h, state, themeButton } from "/static/base.js";
import { destroyAll, redrawAll } from "/static/charts.js";
import { showCompare } from "/static/compare.js";
import { showRun } from "/static/run.js";
import { showRuns } from "/static/runs.js";

const main = document.getElementById("main"), where = h("nav", { class: "where", "aria-label": "Location" });
const VIEWS = { "": showRuns, run: showRun, compare: showCompare };
let leave = () => {};

/** The address: #/run?run=NAME&tab=rollouts is view "run" with its settings. */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  leave();
  destroyAll();
  main.replaceChildren(state("loading"));
  const show = VIEWS[path] ?? VIEWS[""];
  let stopped = false;
  const timers = new Set();
  const context = {
    main,
    query: new URLSearchParams(query),
    /** Change a setting in the address without leaving the view. */
    set(changes) {
      for (const [name, value] of Object.entries(changes)) value === null || value === "" ? this.query.delete(name) : this.query.set(name, value);
      history.replaceState(null, "", `#/${path}?${this.query}`);
    },
    locate(...parts) { where.replaceChildren(...parts); },
    stopped: () => stopped,
    /** Run again and again while the view is open and the page is visible: `act` returns the milliseconds to wait. */
    repeat(act) {
      const turn = async () => {
        let wait = 1000;
        if (!document.hidden) {
          try {
            wait = (await act()) ?? wait;
            offline(false);
          } catch (error) {
            if (!stopped) offline(error.message);
            wait = 2000;
          }
        }
        if (!stopped) { const timer = setTimeout(() => { timers.delete(timer); turn(); }, wait); timers.add(timer); }
      };
      return turn();
    },
  };
  leave = () => { stopped = true; for (const timer of timers) clearTimeout(timer); };
  Promise.resolve(show(context)).catch((error) => {
    if (!stopped) main.replaceChildren(state("error", "This view could not be opened", error.message));
  });
}

const banner = h("div", { class: "banner error offline", role: "alert", hidden: true });
function offline(message) {
  banner.hidden = !message;
  if (message) banner.textContent = message;
}

const logo = document.createElementNS("http://www.w3.org/2000/svg", "svg");
logo.setAttribute("viewBox", "0 0 16 16");
logo.setAttribute("aria-hidden", "true");
const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
for (const [name, value] of Object.entries({ d: "M1.5 13.5 6 6.5l3 3.5 5.5-8", fill: "none", stroke: "currentColor", "stroke-width": "2.2", "stroke-linecap": "round", "stroke-linejoin": "round" }))
  stroke.setAttribute(name, value);
logo.append(stroke);

document.getElementById("top").append(h("a", { class: "brand", href: "#/" }, logo, "Ascent"), where, themeButton(redrawAll));
document.getElementById("top").after(banner);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
window.addEventListener("hashchange", route);
route();
