// The box to try a prompt: the answer as it comes, and the prompt's tokens by where their KV came from.
import { ask, make, written } from "./state.js";

const at = (id) => document.getElementById(id);

// The data of server-sent events, one JSON text each.
async function* eventsOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    waiting += value;
    for (let end = waiting.indexOf("\n\n"); end >= 0; end = waiting.indexOf("\n\n")) {
      const event = waiting.slice(0, end);
      waiting = waiting.slice(end + 2);
      for (const line of event.split("\n")) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
      }
    }
  }
}

export class TryPrompt {
  constructor() {
    this.model = "";
    this.chat = true;
    this.running = null;
    at("try").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    at("try-stop").addEventListener("click", () => this.running?.abort());
    at("try-prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("try").requestSubmit();
    });
  }

  know(state) {
    this.model = state.model;
    this.chat = state.chat;
    at("try-system").hidden = at("try-system-label").hidden = !state.chat;
  }

  // The part of a body that says what the prompt is.
  prompt() {
    const text = at("try-prompt").value;
    if (!this.chat) return { prompt: text };
    const system = at("try-system").value.trim();
    const messages = [{ role: "user", content: text }];
    if (system) messages.unshift({ role: "system", content: system });
    return { messages };
  }

  async send() {
    if (this.running) return;
    this.running = new AbortController();
    at("try-send").disabled = true;
    at("try-stop").disabled = false;
    at("try-answer").textContent = "";
    at("try-answer").setAttribute("aria-busy", "true");
    at("try-pieces").textContent = "";
    at("try-cached").textContent = at("try-computed").textContent = "–";
    this.tell("Waiting for the first token");
    const prompt = this.prompt();
    try {
      const usage = await this.stream(prompt, this.running.signal);
      if (usage) await this.showPieces(prompt, usage);
    } catch (error) {
      this.tell(error.name === "AbortError" ? "Stopped" : error.message);
    }
    at("try-answer").setAttribute("aria-busy", "false");
    at("try-send").disabled = false;
    at("try-stop").disabled = true;
    this.running = null;
  }

  async stream(prompt, signal) {
    const body = {
      ...prompt,
      model: this.model,
      max_tokens: Number(at("try-tokens").value) || 64,
      stream: true,
      stream_options: { include_usage: true },
    };
    const begin = performance.now();
    let first = 0;
    let usage = null;
    const reply = await ask(this.chat ? "v1/chat/completions" : "v1/completions", { body, signal });
    for await (const event of eventsOf(reply)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      const choice = event.choices?.[0];
      const piece = choice?.delta?.content ?? choice?.text ?? "";
      if (!piece) continue;
      if (!first) {
        first = performance.now();
        this.tell("Answering");
      }
      at("try-answer").append(piece);
      at("try-answer").scrollTop = at("try-answer").scrollHeight;
    }
    const tokens = usage ? `, ${written("count", usage.completion_tokens)} tokens` : "";
    this.tell(first ? `First token after ${written("ms", first - begin)}, done after ${written("ms", performance.now() - begin)}${tokens}`
                    : `Done, nothing to show${tokens}`);
    return usage;
  }

  // Cached tokens are the first ones: what is found is a beginning.
  async showPieces(prompt, usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const reply = await ask("tokenize", { body: { ...prompt, model: this.model, return_token_strs: true } });
    const { token_strs: pieces } = await reply.json();
    at("try-cached").textContent = written("count", cached);
    at("try-computed").textContent = written("count", usage.prompt_tokens - cached);
    at("try-pieces").replaceChildren(...pieces.map((piece, i) => {
      const kind = i < cached ? "from-cache" : "computed";
      return make("span", piece.replaceAll("\n", "↵\n"), { className: `piece ${kind}`, title: `token ${i}: ${kind.replace("-", " ")}` });
    }));
  }

  tell(text) {
    at("try-status").textContent = text;
  }
}
