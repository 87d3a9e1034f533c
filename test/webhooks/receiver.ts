// A webhook receiver. It verifies every request with a third-party library, and replies as a test
// chooses.

import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Test } from "tap";
import { requirePackage } from "./packages.ts";

const { Webhook } = requirePackage("standardwebhooks");

export interface ReceivedEvent {
  readonly id: string;
  readonly type: string;
  readonly timestamp: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields of each type
  readonly data: any;
}

export interface ReceivedRequest {
  readonly id: string;
  readonly body: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly events: readonly ReceivedEvent[];
}

/**
 * Replies to a request. Returns the status to reply with, or `undefined` if the function replies
 * itself or not at all.
 */
export type Reply = (request: ReceivedRequest, response: ServerResponse) => number | undefined;

export interface Receiver {
  readonly url: string;
  readonly requests: readonly ReceivedRequest[];
  /** Path and query of each request. */
  readonly urls: readonly string[];
  /** Events of requests that were accepted, without repeated ones. */
  readonly events: readonly ReceivedEvent[];
  /** Secret with which the requests are verified. "" if the requests are not verified. */
  secret: string;
  reply: Reply;
  /** Resolves when the condition is true. */
  until(condition: () => boolean): Promise<void>;
}

export async function startReceiver(t: Test): Promise<Receiver> {
  const requests: ReceivedRequest[] = [];
  const urls: string[] = [];
  const events = new Map<string, ReceivedEvent>();
  const waiting = new Set<() => void>();
  const sockets = new Set<Socket>();
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const body = Buffer.concat(pieces).toString();
      const headers = request.headers as Record<string, string>; // no header is repeated
      if (receiver.secret !== "") new Webhook(receiver.secret).verify(body, headers);
      const received = { id: headers["webhook-id"] ?? "", body, headers, events: eventsIn(body) };
      requests.push(received);
      urls.push(request.url ?? "");
      const status = receiver.reply(received, response);
      if (status !== undefined) {
        if (status < 300) for (const event of received.events) events.set(event.id, event);
        response.writeHead(status).end();
      }
      for (const check of waiting) check();
    });
  });
  server.on("connection", (socket) => sockets.add(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const receiver: Receiver = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`,
    ...{ requests, urls },
    get events() {
      return [...events.values()];
    },
    secret: "",
    reply: () => 204,
    until: (condition) =>
      new Promise((resolve) => {
        const check = () => {
          if (!condition()) return;
          waiting.delete(check);
          resolve();
        };
        waiting.add(check);
        check();
      }),
  };
  return receiver;
}

function eventsIn(body: string): readonly ReceivedEvent[] {
  const content = JSON.parse(body);
  if (Array.isArray(content)) return content;
  return content.type === "batch" ? content.data.events : [content];
}
