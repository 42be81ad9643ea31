// The map of the KV arena: a square per block, or per `stride` blocks where there are too many.
import { colour, make, written } from "./state.js";

const kHeight = 260;
const kSeries = 8;  // colours --s1 to --s8
const kStates = { ".": "free", o: "open", a: "active", c: "cached" };
const kStateWords = { free: "free", open: "being filled", active: "in use", cached: "cached, used by none" };

// Between two "#rrggbb".
function mixed(from, to, share) {
  const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(part(from, i) + (part(to, i) - part(from, i)) * share)).join(" ")})`;
}

function groupNumber(letter) {
  return letter === "+" ? 36 : parseInt(letter, 36);
}

// A way to colour: the class of a cell, and what a class looks like and is called.
const kModes = {
  state: {
    classOf: (map, i) => map.states[i].toLowerCase(),
    colourOf: (kind) => colour(kStates[kind]),
    nameOf: (kind) => kStateWords[kStates[kind]],
    order: ["o", "a", "c", "."],
  },
  sharing: {
    classOf: (map, i) => (map.states[i] === "." ? "." : map.sharing[i]),
    colourOf: (kind) => (kind === "." ? colour("free") : mixed(colour("cold"), colour("hot"), Number(kind) / 9)),
    nameOf: (kind) =>
      kind === "." ? "free" : kind === "0" ? "held by none" : `held by ${kind}${kind === "9" ? " or more" : ""}`,
  },
  group: {
    classOf: (map, i) => map.groups[i],
    colourOf: (kind) => (kind === "." ? colour("free") : colour(`s${(groupNumber(kind) % kSeries) + 1}`)),
    nameOf: (kind, groups) => (kind === "." ? "free" : groupName(kind, groups)),
  },
  heat: {
    classOf: (map, i) => map.heat[i],
    colourOf: (kind) => (kind === "." ? colour("free") : mixed(colour("cold"), colour("hot"), Number(kind) / 9)),
    nameOf: (kind) => (kind === "." ? "free" : heatName(kind)),
  },
};

function groupName(kind, groups) {
  const group = groups[groupNumber(kind)];
  if (!group) return "further groups";
  return `group ${groupNumber(kind)}: ${group.kind}${group.window ? ` of ${group.window}` : ""}`;
}

function heatName(kind) {
  const doublings = 9 - Number(kind);
  if (doublings === 0) return "used within 1 s";
  return doublings === 9 ? "unused for 256 s or more" : `unused for ${2 ** (doublings - 1)} s`;
}

export class BlockMap {
  constructor(canvas, cell, legend) {
    Object.assign(this, { canvas, cell, legend, state: null, cursor: -1, mode: "state" });
    for (const radio of document.querySelectorAll("input[name=map-mode]")) {
      if (radio.checked) this.mode = radio.value;
      radio.addEventListener("change", () => {
        this.mode = radio.value;
        this.draw();
      });
    }
    canvas.addEventListener("keydown", (event) => this.move(event));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.select(-1));
    canvas.addEventListener("blur", () => this.select(-1));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  show(state) {
    this.state = state;
    this.draw();
  }

  draw() {
    if (!this.state) return;
    const { blocks } = this.state;
    const mode = kModes[this.mode];
    const count = blocks.states.length;
    this.measure(count);
    const context = this.canvas.getContext("2d");
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const gap = this.side >= 5 ? 1 : 0;
    const colours = new Map();
    const counts = new Map();
    for (let i = 0; i < count; ++i) {
      const kind = mode.classOf(blocks, i);
      if (!colours.has(kind)) colours.set(kind, mode.colourOf(kind));
      counts.set(kind, (counts.get(kind) ?? 0) + 1);
      context.fillStyle = colours.get(kind);
      context.fillRect((i % this.columns) * this.side, Math.floor(i / this.columns) * this.side, this.side - gap, this.side - gap);
    }
    if (this.cursor >= 0 && this.cursor < count) {
      context.strokeStyle = colour("text");
      context.lineWidth = 2;
      context.strokeRect((this.cursor % this.columns) * this.side, Math.floor(this.cursor / this.columns) * this.side,
                         this.side, this.side);
    }
    this.tellLegend(mode, counts, colours);
    this.tellCell();
  }

  // Squares as large as a width and a usual height allow.
  measure(count) {
    this.width = Math.max(this.canvas.clientWidth, 1);
    this.side = Math.min(16, Math.max(3, Math.floor(Math.sqrt((this.width * kHeight) / Math.max(count, 1)))));
    this.columns = Math.max(1, Math.floor(this.width / this.side));
    this.height = Math.max(1, Math.ceil(count / this.columns) * this.side);
    this.scale = window.devicePixelRatio || 1;
    const wide = Math.round(this.width * this.scale);
    const high = Math.round(this.height * this.scale);
    if (this.canvas.width !== wide) this.canvas.width = wide;
    if (this.canvas.height !== high) this.canvas.height = high;
    this.canvas.style.height = `${this.height}px`;
  }

  tellLegend(mode, counts, colours) {
    const kinds = [...counts.keys()].sort();
    if (mode.order) kinds.sort((a, b) => mode.order.indexOf(a) - mode.order.indexOf(b));
    const { stride, total } = this.state.blocks;
    const names = kinds.map((kind) => `${mode.nameOf(kind, this.state.groups)}: ${written("count", counts.get(kind))}`);
    this.legend.replaceChildren(...kinds.map((kind, i) => {
      const item = make("li");
      const swatch = make("span", "", { className: "swatch", ariaHidden: "true" });
      swatch.style.background = colours.get(kind);
      item.append(swatch, names[i]);
      return item;
    }));
    if (stride > 1) this.legend.append(make("li", `each square is ${stride} blocks and shows the busiest`));
    this.canvas.setAttribute("aria-label", `Map of ${written("count", total)} KV blocks by ${this.mode}. ${names.join(", ")}`);
  }

  select(index) {
    this.cursor = index;
    this.draw();
  }

  move(event) {
    if (!this.state) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    const last = this.state.blocks.states.length - 1;
    let next;
    if (event.key in steps) next = this.cursor < 0 ? 0 : this.cursor + steps[event.key];
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    else if (event.key === "Escape") next = -1;
    else return;
    event.preventDefault();
    if (next <= last && (next >= 0 || event.key === "Escape")) this.select(next);
  }

  point(event) {
    if (!this.state) return;
    const column = Math.floor(event.offsetX / this.side);
    const index = Math.floor(event.offsetY / this.side) * this.columns + column;
    const inside = column < this.columns && index >= 0 && index < this.state.blocks.states.length;
    if ((inside ? index : -1) !== this.cursor) this.select(inside ? index : -1);
  }

  tellCell() {
    const text = this.cellText();
    if (this.cell.textContent !== text) this.cell.textContent = text;
  }

  cellText() {
    const { blocks, groups } = this.state;
    const i = this.cursor;
    if (i < 0 || i >= blocks.states.length) return "\u00a0";
    const letter = blocks.states[i];
    const place = blocks.stride > 1 ? `Blocks ${i * blocks.stride} to ${Math.min((i + 1) * blocks.stride, blocks.total) - 1}`
                                    : `Block ${i}`;
    if (letter === ".") return `${place}: free`;
    const words = [kStateWords[kStates[letter.toLowerCase()]], groupName(blocks.groups[i], groups)];
    if (letter.toLowerCase() !== "c") words.push(kModes.sharing.nameOf(blocks.sharing[i]));
    else words.push(heatName(blocks.heat[i]));
    if (letter !== letter.toLowerCase()) words.push("can be found");
    return `${place}: ${words.join(", ")}`;
  }
}
