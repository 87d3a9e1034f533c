// A reader of a stream's server-sent events, like `curl` or a browser's EventSource. Throws on a
// gap and on a repeat.

import { type ClientRequest, get } from "node:http";
import { STREAM_CONTENT } from "../../src/broker/model.ts";

/** One server-sent event. */
interface SentEvent {
  readonly id: string;
  readonly name: string;
  readonly data: string;
}

/** Error of a reader that was refused with an HTTP status. */
export class SseRefusal extends Error {
  readonly status: number | undefined;

  constructor(path: string, status: number | undefined) {
    super(`${path} responded with ${status}`);
    this.status = status;
  }
}

export class SseReader {
  /** Text since the first event received. */
  text = "";
  /** Number of UTF-16 code units of the stream's text before the first event received. */
  firstOffset: number | undefined;
  /** Index and data of all events except content, in order. */
  readonly otherEvents: { readonly index: number; readonly data: string }[] = [];
  readonly #from: number;
  #nextIndex: number;
  #isDone = false;
  #call: ClientRequest | undefined;

  constructor(from: number) {
    this.#from = from;
    this.#nextIndex = from;
  }

  get isDone(): boolean {
    return this.#isDone;
  }

  /**
   * Reads until the stream ends, the connection breaks, or `drop` is called. Continues after the
   * last event if the reader has read before.
   */
  async read(port: number, path: string): Promise<void> {
    const isContinued = this.#nextIndex > this.#from;
    const mark = path.includes("?") ? "&" : "?";
    const headers = {
      Accept: "text/event-stream",
      ...(isContinued ? { "Last-Event-ID": String(this.#nextIndex) } : {}),
    };
    const target = `${path}${mark}from=${this.#from}`;
    await new Promise<void>((resolve, reject) => {
      const options = { host: "127.0.0.1", port, path: target, headers };
      this.#call = get({ ...options, agent: false }, (response) => {
        if (response.statusCode !== 200) return reject(new SseRefusal(path, response.statusCode));
        response.setEncoding("utf8");
        let remainder = "";
        response.on("data", (piece: string) => {
          const blocks = (remainder + piece).split("\n\n");
          remainder = blocks.pop() ?? "";
          try {
            for (const block of blocks) this.#handle(sentEvent(block));
          } catch (error) {
            reject(error);
          }
        });
        response.on("error", () => resolve()); // the connection broke, the caller checks isDone
        response.on("close", resolve);
      });
      this.#call.on("error", () => resolve());
    });
  }

  drop(): void {
    this.#call?.destroy();
  }

  #handle({ id, name, data }: SentEvent): void {
    if (name === "") return; // a keep-alive comment
    const event = JSON.parse(data);
    if (event.index !== this.#nextIndex)
      throw new Error(`got event ${event.index} instead of ${this.#nextIndex}`);
    if (id !== String(event.next_index))
      throw new Error(`got id ${id} instead of ${event.next_index}`);
    this.firstOffset ??= event.text_offset;
    if (event.text_offset !== (this.firstOffset ?? 0) + this.text.length)
      throw new Error(`got the wrong text offset ${event.text_offset}`);
    this.#nextIndex = event.next_index;
    if (event.type === STREAM_CONTENT) this.text += event.data;
    else this.otherEvents.push({ index: event.index, data: event.data });
    if (name === "end") this.#isDone = true;
  }
}

function sentEvent(block: string): SentEvent {
  const event = { id: "", name: "", data: "" };
  for (const line of block.split("\n")) {
    const [, field, value = ""] = /^(\w*): ?(.*)$/s.exec(line) ?? [];
    if (field === "id") event.id = value;
    else if (field === "event") event.name = value;
    else if (field === "data") event.data += value;
  }
  return event;
}
