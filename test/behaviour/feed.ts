// A reader of a stream's server-sent events by fetch, as a page reads them. State: the events so
// far.

import type { Test } from "tap";
import { eventually } from "./world.ts";

export interface FeedEvent {
  /** The index behind it. */
  readonly id: string;
  readonly name: string;
  // biome-ignore lint/suspicious/noExplicitAny: bodies are looked into freely by tests
  readonly data: any;
}

export interface Feed {
  readonly status: number;
  readonly headers: Headers;
  /** So far, in order. */
  readonly events: readonly FeedEvent[];
  /** The content among them. */
  text(): string;
  /** Resolves once so many events are there. */
  has(count: number): Promise<void>;
  /** Resolves once the server has ended it. */
  readonly over: Promise<void>;
  /** Goes away without a word. */
  leave(): void;
}

/** Asks and resolves with the head of the reply. */
export async function openFeed(
  t: Test,
  url: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<Feed> {
  const leaving = new AbortController();
  t.teardown(() => leaving.abort());
  const response = await fetch(url, {
    headers: { accept: "text/event-stream", ...headers },
    signal: leaving.signal,
  });
  const events: FeedEvent[] = [];
  const over = readAll(response, events);
  over.catch(() => undefined); // who waits for it hears of it
  return {
    ...{ status: response.status, headers: response.headers, events, over },
    text: () =>
      events
        .filter(({ name }) => name === "content")
        .map(({ data }) => data.data)
        .join(""),
    has: (count) => eventually(() => events.length >= count, 5),
    leave: () => leaving.abort(),
  };
}

async function readAll(response: Response, events: FeedEvent[]): Promise<void> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of response.body ?? []) {
    const blocks = (rest + decoder.decode(bytes, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = eventOf(block);
      if (event !== undefined) events.push(event);
    }
  }
}

/** Undefined: a comment, or how long to wait before coming back. */
function eventOf(block: string): FeedEvent | undefined {
  const lines = block.split("\n");
  const field = (name: string) =>
    lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data = field("data");
  if (data === undefined) return undefined;
  return {
    id: field("id") ?? "",
    name: field("event") ?? "",
    data: JSON.parse(data),
  };
}
