// A reader of a stream's server-sent events with `fetch`, as a page reads them.

import type { Test } from "tap";
import { eventually } from "./world.ts";

export interface FeedEvent {
  /** Index at which a reader continues after this event. */
  readonly id: string;
  readonly name: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a body without a schema
  readonly data: any;
}

export interface Feed {
  readonly status: number;
  readonly headers: Headers;
  /** Events so far, in order. */
  readonly events: readonly FeedEvent[];
  /** Returns the text of the content events. */
  text(): string;
  /** Resolves when `count` events have arrived. */
  untilEvents(count: number): Promise<void>;
  /** Resolves when the server has ended the response. */
  readonly ended: Promise<void>;
  /** Aborts the request. */
  leave(): void;
}

/** Sends the request. Resolves with the head of the response. */
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
  const ended = readAll(response, events);
  ended.catch(() => undefined); // a caller that awaits `ended` gets the error
  return {
    ...{ status: response.status, headers: response.headers, events, ended },
    text: () =>
      events
        .filter(({ name }) => name === "content")
        .map(({ data }) => data.data)
        .join(""),
    untilEvents: (count) => eventually(() => events.length >= count, 5),
    leave: () => leaving.abort(),
  };
}

async function readAll(response: Response, events: FeedEvent[]): Promise<void> {
  const decoder = new TextDecoder();
  let remainder = "";
  for await (const bytes of response.body ?? []) {
    const blocks = (remainder + decoder.decode(bytes, { stream: true })).split("\n\n");
    remainder = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = eventOf(block);
      if (event !== undefined) events.push(event);
    }
  }
}

/** Parses an event. Returns `undefined` for a comment or a `retry` field. */
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
