// What the page asks the server, and how numbers are written.

const kKeyName = "kvarto-key";
let key = sessionStorage.getItem(kKeyName) ?? "";

export function useKey(text) {
  key = text.trim();
  if (key) sessionStorage.setItem(kKeyName, key);
  else sessionStorage.removeItem(kKeyName);
}

// The server's own words for what went wrong.
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Paths are relative to the page, so that it works behind a prefix.
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const reply = await fetch(path, {
    method: body ? "POST" : "GET",
    headers,
    body: body && JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (reply.ok) return reply;
  let message = `The server answered ${reply.status}`;
  try {
    message = (await reply.json()).error.message;
  } catch {
    // No JSON: the status has to do.
  }
  throw new ServerError(reply.status, message);
}

// Of all series of `family`, the sum of those whose name holds every one of `parts`.
export function sumOf(series, family, ...parts) {
  let sum = 0;
  for (const [name, value] of Object.entries(series)) {
    if ((name === family || name.startsWith(`${family}{`)) && parts.every((part) => name.includes(part))) sum += value;
  }
  return sum;
}

const ratio = (part, whole) => (whole > 0 ? part / whole : null);
const meanOf = (series, family) => ratio(series[`${family}_sum`], series[`${family}_count`]);

// Numbers that are made of several series of one scrape.
export const derived = {
  "blocks-used": (s) => sumOf(s, "kvarto:kv_blocks", 'state="open"') + sumOf(s, "kvarto:kv_blocks", 'state="active"'),
  "blocks-cached": (s) => sumOf(s, "kvarto:kv_blocks", 'state="cached"'),
  "hit-rate": (s) => ratio(s["vllm:prefix_cache_hits_total"], s["vllm:prefix_cache_queries_total"]),
  "ttft-mean": (s) => meanOf(s, "vllm:time_to_first_token_seconds"),
  "tpot-mean": (s) => meanOf(s, "vllm:request_time_per_output_token_seconds"),
};

export const kNone = "–";

function milliseconds(value) {
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 100) return `${Math.round(value)} ms`;
  return `${value.toFixed(1)} ms`;
}

function bytes(value) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  }
  return `${value} B`;
}

const kFormats = {
  count: (value) => Math.round(value).toLocaleString("en-US"),
  percent: (value) => `${(value * 100).toFixed(1)} %`,
  seconds: (value) => milliseconds(value * 1000),
  ms: milliseconds,
  bytes,
};

export function written(format, value) {
  return value === null || value === undefined ? kNone : kFormats[format](value);
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// An element with text and further properties.
export function make(tag, text = "", properties = {}) {
  const element = document.createElement(tag);
  if (text !== "") element.textContent = text;
  return Object.assign(element, properties);
}
