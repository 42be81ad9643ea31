// The page's loop: once a second the state of one scrape, shown everywhere. It rests while nobody looks.
import { BlockMap } from "./block_map.js";
import { Charts } from "./charts.js";
import { ask, derived, useKey, written } from "./state.js";
import { showBreakers, showLatency, showPlan, showRequests } from "./tables.js";
import { TryPrompt } from "./try_prompt.js";

const kInterval = 1000;
const at = (id) => document.getElementById(id);

const map = new BlockMap(at("map"), at("map-cell"), at("map-legend"));
const charts = new Charts();
const tryPrompt = new TryPrompt();
let last = null;
let timer = 0;
let asking = false;

function tell(good, text) {
  at("light").className = `light ${good ? "good" : "bad"}`;
  if (at("status-text").textContent !== text) at("status-text").textContent = text;
}

// Every number with a series, or several, behind it; data-value has it unrounded.
function showNumbers(state) {
  for (const element of document.querySelectorAll("[data-series], [data-derived]")) {
    const { series, derived: name, format } = element.dataset;
    const value = (series ? state.series[series] : derived[name](state.series)) ?? null;
    element.dataset.value = value === null ? "" : String(value);
    const text = written(format, value);
    if (element.textContent !== text) element.textContent = text;
  }
}

function show(state) {
  last = state;
  document.body.dataset.scrape = state.scrape;
  at("scrape").textContent = state.scrape;
  at("model").textContent = `${state.model}, ${state.version}`;
  document.title = `${state.model} – Kvarto`;
  showNumbers(state);
  map.show(state);
  charts.add(state);
  showLatency(state);
  showPlan(state);
  showBreakers(state);
  showRequests(state);
  tryPrompt.know(state);
}

function showKeyForm(shown) {
  at("key-form").hidden = !shown;
  at("show-key").setAttribute("aria-expanded", String(shown));
}

async function look() {
  if (asking) return;
  clearTimeout(timer);
  asking = true;
  let wait = kInterval;
  try {
    const reply = await ask("dashboard/state");
    show(await reply.json());
    tell(true, "Live");
  } catch (error) {
    wait = 2 * kInterval;
    if (error.status === 401) {
      tell(false, "This server wants an API key");
      showKeyForm(true);
    } else {
      tell(false, error.status ? error.message : "The server does not answer; numbers are old");
    }
  }
  asking = false;
  if (!document.hidden) timer = setTimeout(look, wait);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) look();
});

at("show-key").addEventListener("click", () => {
  showKeyForm(at("key-form").hidden);
  if (!at("key-form").hidden) at("key").focus();
});
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key").value);
  at("key").value = "";
  showKeyForm(false);
  at("show-key").focus();
  look();
});

at("show-scrape").addEventListener("click", async () => {
  if (!last) return;
  const id = last.scrape;
  at("scrape-title").textContent = `/metrics of scrape ${id}`;
  at("scrape-text").textContent = "";
  at("scrape-dialog").showModal();
  try {
    at("scrape-text").textContent = await (await ask(`metrics?scrape=${id}`)).text();
  } catch (error) {
    at("scrape-text").textContent = error.message;
  }
});
at("scrape-close").addEventListener("click", () => at("scrape-dialog").close());

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  charts.recolour();
  map.draw();
  if (last) showPlan(last);
});
look();
