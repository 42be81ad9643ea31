// Latency, the memory plan, prefix breakers and requests.
import { colour, kNone, make, written } from "./state.js";

const at = (id) => document.getElementById(id);

export function showLatency({ latency }) {
  for (const cell of document.querySelectorAll("[data-latency]")) {
    const [family, percentile] = cell.dataset.latency.split(".");
    cell.dataset.value = latency[family][percentile] ?? "";
    cell.textContent = written("ms", latency[family][percentile]);
  }
  const count = latency.ttft_ms.count;
  at("latency-note").textContent =
      `Percentiles of the last ${count === 1 ? "request" : `${written("count", count)} requests`} that ended; mean and count since the start.`;
}

let shownPlan = "";

export function showPlan({ plan }) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = JSON.stringify([plan, dark]);
  if (now === shownPlan) return;
  shownPlan = now;
  const rest = Math.max(0, plan.available_bytes - plan.total_bytes);
  const lines = plan.lines.filter((line) => line.bytes > 0);
  const colours = lines.map((_, i) => colour(`s${(i % 8) + 1}`));
  at("plan-bar").replaceChildren(...lines.map((line, i) => {
    const part = make("span", "", { title: `${line.name}: ${written("bytes", line.bytes)}` });
    part.style.flexGrow = line.bytes;
    part.style.background = colours[i];
    return part;
  }));
  const free = make("span");
  free.style.flexGrow = rest;
  at("plan-bar").append(free);
  at("plan-bar").setAttribute("aria-label", `Memory plan: ${lines.map((l) => `${l.name} ${written("bytes", l.bytes)}`).join(", ")}`);
  at("plan-list").replaceChildren(...lines.map((line, i) => {
    const item = make("li");
    const swatch = make("span", "", { className: "swatch", ariaHidden: "true" });
    swatch.style.background = colours[i];
    item.append(swatch, make("b", `${line.name} ${written("bytes", line.bytes)}`), line.reason ? `: ${line.reason}` : "");
    return item;
  }));
  at("plan-note").textContent = `${written("bytes", plan.total_bytes)} of ${written("bytes", plan.available_bytes)} available; KV for ` +
      `${written("count", plan.kv_tokens)} tokens, or ${written("count", plan.full_requests)} requests of full length.`;
}

function placeOf(breaker) {
  switch (breaker.place) {
    case "message":
      return `message ${breaker.index + 1}${breaker.role ? ` (${breaker.role})` : ""}`;
    case "tools":
      return `tool ${breaker.index + 1}`;
    case "template":
      return "the template's own text";
    default:
      return "a prompt that is no chat";
  }
}

function coded(before, text) {
  const line = make("p", before);
  line.append(make("code", text));
  return line;
}

function breakerItem(breaker) {
  const item = make("li");
  item.append(make("b", placeOf(breaker)),
              `, ${written("count", breaker.part_begin)} bytes into it, at token ${written("count", breaker.position)}: ` +
              `${written("count", breaker.count)} ${breaker.count === 1 ? "time" : "times"}, ` +
              `${written("count", breaker.lost_tokens)} tokens computed again `);
  if (breaker.text) {
    if (breaker.text.line) item.append(coded("last: ", breaker.text.line));
    if (breaker.text.earlier) item.append(coded("before: ", breaker.text.earlier));
    if (breaker.text.known) item.append(coded("the known prompt has there: ", breaker.text.known));
    if (breaker.text.rule) item.append(coded("for --volatile-text: ", breaker.text.rule));
  } else {
    item.append(`(line of ${written("count", breaker.line_bytes)} bytes, hash ${breaker.hash})`);
  }
  return item;
}

let shownBreakers = "";

export function showBreakers(state) {
  const now = JSON.stringify([state.breakers, state.near_misses, state.text]);
  if (now === shownBreakers) return;
  shownBreakers = now;
  at("breakers").replaceChildren(...state.breakers.map(breakerItem));
  const near = state.near_misses === 1 ? "1 near miss" : `${written("count", state.near_misses)} near misses`;
  at("breakers-note").textContent = state.breakers.length === 0 ? `None so far (${near}).`
      : state.text ? "" : "Text is shown with --dashboard-text and an API key.";
}

const kColumns = ["id", "state", "prompt", "cached", "output", "TTFT", "TPOT", "miss reason"];

function requestCells(row) {
  return [row.id, row.state, written("count", row.prompt), written("count", row.cached), written("count", row.output),
          written("ms", row.ttft_ms), written("ms", row.tpot_ms), (row.miss_reason ?? kNone).replaceAll("_", " ")];
}

export function showRequests({ requests }) {
  const body = at("requests").tBodies[0];
  while (body.rows.length > requests.length) body.deleteRow(-1);
  requests.forEach((row, i) => {
    const line = body.rows[i] ?? body.insertRow();
    requestCells(row).forEach((text, c) => {
      const cell = line.cells[c] ?? line.insertCell();
      cell.dataset.label = kColumns[c];
      if (cell.textContent !== text) cell.textContent = text;
      if (c === 1) cell.className = row.state;
    });
  });
  at("requests-note").textContent = requests.length === 0 ? "No requests yet." : "Those that run, then the last that ended.";
}
