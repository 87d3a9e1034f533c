// A reader of server-sent events for tests. It uses a raw HTTP client, so that it can stop reading,
// drop its connection without closing it properly, and resume at an index.

import type { Test } from "tap";
import { RawClient, until } from "../transport/support.ts";

/** One event of a feed. */
export interface FeedEvent {
  readonly id: number;
  readonly event: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any of its fields
  readonly data: any;
}

/** Returns the received part of the body of a chunked reply. */
export function bodyOf(raw: Buffer): { text: string; isComplete: boolean } {
  const pieces: Buffer[] = [];
  let at = raw.indexOf("\r\n\r\n") + 4;
  for (;;) {
    const lineEnd = raw.indexOf("\r\n", at);
    if (at < 4 || lineEnd < 0) break;
    const size = Number.parseInt(raw.toString("latin1", at, lineEnd), 16);
    if (size === 0) return { text: Buffer.concat(pieces).toString(), isComplete: true };
    pieces.push(raw.subarray(lineEnd + 2, lineEnd + 2 + size));
    at = lineEnd + 2 + size + 2;
    if (at > raw.length) break;
  }
  return { text: Buffer.concat(pieces).toString(), isComplete: false };
}

/** Returns the complete events in the text of a feed, in order. */
export function eventsOf(text: string): FeedEvent[] {
  return text
    .split("\n\n")
    .slice(0, -1)
    .filter((block) => block.startsWith("id: "))
    .map((block) => {
      const fields = new Map(
        block.split("\n").map((line) => {
          const colon = line.indexOf(": ");
          return [line.slice(0, colon), line.slice(colon + 2)] as const;
        }),
      );
      return {
        id: Number(fields.get("id")),
        event: fields.get("event") ?? "",
        data: JSON.parse(fields.get("data") ?? ""),
      };
    });
}

/** One call that follows a stream. */
export class FeedReader {
  readonly client: RawClient;

  constructor(
    t: Test,
    port: number,
    options: {
      readonly path?: string;
      readonly lastId?: number;
      readonly authorization?: string;
    } = {},
  ) {
    const { path = "/stream/2/g/answer", lastId, authorization } = options;
    this.client = new RawClient(t, port);
    const resume = lastId === undefined ? "" : `last-event-id: ${lastId}\r\n`;
    const credential = authorization === undefined ? "" : `authorization: ${authorization}\r\n`;
    this.client.write(
      `GET ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n${resume}${credential}\r\n`,
    );
  }

  get status(): number {
    return Number(this.client.text.slice(9, 12));
  }

  /** Received part of the body. */
  get text(): string {
    return bodyOf(this.client.received).text;
  }

  get events(): FeedEvent[] {
    return eventsOf(this.text);
  }

  /** True if the server ended the reply properly. */
  get isComplete(): boolean {
    return bodyOf(this.client.received).isComplete;
  }

  /** Waits until `count` events were received and returns all received events. */
  async received(count: number): Promise<FeedEvent[]> {
    await until(() => this.events.length >= count);
    return this.events;
  }
}
