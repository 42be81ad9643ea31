// Throughput, KV use and queue over the last minutes. Chart.js is a script of its own.
import { colour, written } from "./state.js";

const kKept = 180;  // samples, a second each

const kAxis = (title, more = {}) => ({ beginAtZero: true, title: { display: true, text: title }, ...more });

function lines(canvas, scales, datasets) {
  return new window.Chart(canvas, {
    type: "line",
    data: { datasets: datasets.map((one) => ({ data: [], borderWidth: 2, pointRadius: 0, ...one })) },
    options: {
      animation: false,
      parsing: false,
      normalized: true,
      maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { type: "linear", min: -60, max: 0, ticks: { maxTicksLimit: 7, callback: (value) => `${value} s` } },
        ...scales,
      },
      plugins: { legend: { labels: { boxWidth: 14 } } },
    },
  });
}

export class Charts {
  constructor() {
    this.samples = [];
    this.previous = null;
    this.rate = lines(document.getElementById("rate-chart"), { y: kAxis("tokens/s") },
                      [{ label: "prompt", series: "s2", value: (s) => s.prompt },
                       { label: "generated", series: "s1", value: (s) => s.generated }]);
    this.use = lines(document.getElementById("use-chart"),
                     { y: kAxis("% in use", { suggestedMax: 100 }),
                       right: kAxis("requests", { position: "right", suggestedMax: 4, ticks: { precision: 0 },
                                                  grid: { drawOnChartArea: false } }) },
                     [{ label: "KV use", series: "s3", value: (s) => s.usage },
                      { label: "running", series: "s1", yAxisID: "right", value: (s) => s.running },
                      { label: "waiting", series: "s2", yAxisID: "right", borderDash: [5, 3], value: (s) => s.waiting }]);
    this.recolour();
  }

  add(state) {
    const { series } = state;
    const now = {
      seconds: state.time_us / 1e6,
      prompt_total: series["kvarto:computed_prompt_tokens_total"],
      generated_total: series["vllm:generation_tokens_total"],
      usage: 100 * series["vllm:kv_cache_usage_perc"],
      running: series["vllm:num_requests_running"],
      waiting: series["vllm:num_requests_waiting"],
    };
    // Started anew: what was is another server's.
    if (this.previous && now.generated_total < this.previous.generated_total) this.samples = [];
    const passed = this.previous ? now.seconds - this.previous.seconds : 0;
    const rate = (name) => (passed > 0 ? Math.max(0, now[name] - this.previous[name]) / passed : null);
    this.samples.push({ ...now, prompt: rate("prompt_total"), generated: rate("generated_total") });
    if (this.samples.length > kKept) this.samples.shift();
    this.previous = now;
    this.draw();
  }

  draw() {
    const last = this.samples[this.samples.length - 1];
    if (!last) return;
    const begin = Math.max(-kKept, Math.min(-60, Math.floor((this.samples[0].seconds - last.seconds) / 30) * 30));
    for (const chart of [this.rate, this.use]) {
      chart.options.scales.x.min = begin;
      for (const dataset of chart.data.datasets) {
        dataset.data = this.samples.map((sample) => ({ x: sample.seconds - last.seconds, y: dataset.value(sample) }));
      }
      chart.update("none");
    }
    this.tell(last);
  }

  tell(last) {
    const now = (value, word) => `${value === null ? "–" : written("count", value)} ${word}`;
    const rate = `${now(last.prompt, "prompt tokens/s")}, ${now(last.generated, "generated tokens/s")}`;
    const use = `${last.usage.toFixed(1)} % of the KV cache, ${now(last.running, "running")}, ${now(last.waiting, "waiting")}`;
    for (const [name, text] of [["rate", rate], ["use", use]]) {
      document.getElementById(`${name}-text`).textContent = `Now: ${text}.`;
      document.getElementById(`${name}-chart`).setAttribute("aria-label", `Chart since this page was opened. Now: ${text}`);
    }
  }

  recolour() {
    for (const chart of [this.rate, this.use]) {
      for (const axis of Object.values(chart.options.scales)) {
        axis.ticks = { ...axis.ticks, color: colour("quiet") };
        axis.grid = { ...axis.grid, color: colour("line") };
        if (axis.title) axis.title = { ...axis.title, color: colour("quiet") };
      }
      chart.options.plugins.legend.labels.color = colour("text");
      for (const dataset of chart.data.datasets) dataset.borderColor = dataset.backgroundColor = colour(dataset.series);
      chart.update("none");
    }
  }
}
