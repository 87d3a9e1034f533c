// A reader of a stream's server-sent events as `curl` or a browser's EventSource is one. State: the
// text since its first event, the id to go on from, how it ended. A gap or a repeat is a fault that
// throws.

import { type ClientRequest, get } from "node:http";
import { STREAM_CONTENT } from "../../src/broker/model.ts";

/** One event as it stood on the wire. */
interface SentEvent {
  readonly id: string;
  readonly name: string;
  readonly data: string;
}

export class SseReader {
  /** Content since the first event it got. */
  text = "";
  /** UTF-16 units of the stream's text before that. */
  firstOffset: number | undefined;
  /** Other events' indexes and data, in order. */
  readonly others: { readonly index: number; readonly data: string }[] = [];
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
   * Reads until the stream is over, the connection breaks, or `drop`. Goes on by Last-Event-ID
   * where it was before.
   */
  async read(port: number, path: string): Promise<void> {
    const isAgain = this.#nextIndex > this.#from;
    const mark = path.includes("?") ? "&" : "?";
    const headers = {
      Accept: "text/event-stream",
      ...(isAgain ? { "Last-Event-ID": String(this.#nextIndex) } : {}),
    };
    const target = `${path}${mark}from=${this.#from}`;
    await new Promise<void>((resolve, reject) => {
      const options = { host: "127.0.0.1", port, path: target, headers };
      this.#call = get({ ...options, agent: false }, (response) => {
        if (response.statusCode !== 200)
          return reject(new Error(`${path}: ${response.statusCode}`));
        response.setEncoding("utf8");
        let rest = "";
        response.on("data", (piece: string) => {
          const blocks = (rest + piece).split("\n\n");
          rest = blocks.pop() ?? "";
          try {
            for (const block of blocks) this.#take(sentEvent(block));
          } catch (error) {
            reject(error);
          }
        });
        response.on("error", () => resolve()); // it was cut: the caller looks at isDone
        response.on("close", resolve);
      });
      this.#call.on("error", () => resolve());
    });
  }

  drop(): void {
    this.#call?.destroy();
  }

  #take({ id, name, data }: SentEvent): void {
    if (name === "") return; // a comment that keeps the connection open
    const event = JSON.parse(data);
    if (event.index !== this.#nextIndex)
      throw new Error(`event ${event.index}, not ${this.#nextIndex}`);
    if (id !== String(event.next_index)) throw new Error(`id ${id}, not ${event.next_index}`);
    this.firstOffset ??= event.text_offset;
    if (event.text_offset !== (this.firstOffset ?? 0) + this.text.length)
      throw new Error(`offset ${event.text_offset}`);
    this.#nextIndex = event.next_index;
    if (event.type === STREAM_CONTENT) this.text += event.data;
    else this.others.push({ index: event.index, data: event.data });
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
