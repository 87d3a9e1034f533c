// Success replies: JSON with the headers every reply of the control plane has. State: none.

import type { HttpReply } from "../transport/types.ts";

/** Headers of every JSON reply: never cached, never sniffed. */
export const JSON_HEADERS: Readonly<Record<string, string>> = Object.freeze({
  "content-type": "application/json; charset=utf-8",
  "cache-control": "no-store",
  "x-content-type-options": "nosniff",
});

/** Lets pages of any origin read the reply. */
export const OPEN_TO_PAGES: Readonly<Record<string, string>> = Object.freeze({
  "access-control-allow-origin": "*",
});

/** 204: a stream has ended, and the reader has all of it. */
export const NOTHING_REPLY: HttpReply = Object.freeze({
  status: 204,
  headers: Object.freeze({
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  }),
  body: "",
});

/** 200; `body` is JSON text. */
export function jsonReply(body: string): HttpReply {
  return { status: 200, headers: JSON_HEADERS, body };
}

/** `{"status":"ok"}`: the success body of writes [decisions: Success body]. */
export const OK_REPLY: HttpReply = Object.freeze(jsonReply('{"status":"ok"}'));

/** For `.then` of a use case without a result. */
export const okReply = (): HttpReply => OK_REPLY;
