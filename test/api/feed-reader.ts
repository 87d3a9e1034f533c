// A reader of server-sent events for tests: a raw HTTP client that can stop reading, vanish and
// come back where it was. Checks nothing itself.

import type { Test } from "tap";
import { RawClient, until } from "../transport/support.ts";

export interface SeenEvent {
  readonly id: number;
  readonly event: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into it freely
  readonly data: any;
}

/** The body of a chunked reply as far as it has come. */
export function bodyOf(raw: Buffer): { text: string; isWhole: boolean } {
  const pieces: Buffer[] = [];
  let at = raw.indexOf("\r\n\r\n") + 4;
  for (;;) {
    const lineEnd = raw.indexOf("\r\n", at);
    if (at < 4 || lineEnd < 0) break;
    const size = Number.parseInt(raw.toString("latin1", at, lineEnd), 16);
    if (size === 0) return { text: Buffer.concat(pieces).toString(), isWhole: true };
    pieces.push(raw.subarray(lineEnd + 2, lineEnd + 2 + size));
    at = lineEnd + 2 + size + 2;
    if (at > raw.length) break;
  }
  return { text: Buffer.concat(pieces).toString(), isWhole: false };
}

/** The complete events of a feed, in order. */
export function eventsOf(text: string): SeenEvent[] {
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

export class FeedReader {
  readonly client: RawClient;

  constructor(
    t: Test,
    port: number,
    given: {
      readonly path?: string;
      readonly lastId?: number;
      readonly authorization?: string;
    } = {},
  ) {
    const { path = "/stream/2/g/answer", lastId, authorization } = given;
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

  /** Everything of the body so far. */
  get text(): string {
    return bodyOf(this.client.received).text;
  }

  get events(): SeenEvent[] {
    return eventsOf(this.text);
  }

  /** The server ended the reply in an orderly way. */
  get isWhole(): boolean {
    return bodyOf(this.client.received).isWhole;
  }

  /** Resolves when so many events have come. */
  async has(count: number): Promise<SeenEvent[]> {
    await until(() => this.events.length >= count);
    return this.events;
  }
}
