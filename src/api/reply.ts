// Success replies: JSON with the headers every reply of the control plane has. State: none.

import type { HttpReply } from "../transport/types.ts";

/** Headers of every JSON reply: never cached, never sniffed. */
export const JSON_HEADERS: Readonly<Record<string, string>> = Object.freeze({
  "content-type": "application/json; charset=utf-8",
  "cache-control": "no-store",
  "x-content-type-options": "nosniff",
});

/** Lets pages of every origin read the reply. */
export const OPEN_TO_PAGES: Readonly<Record<string, string>> = Object.freeze({
  "access-control-allow-origin": "*",
});

/** 204: there is nothing to say, and nothing will be. */
export const NOTHING_REPLY: HttpReply = Object.freeze({
  status: 204,
  headers: Object.freeze({
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  }),
  body: "",
});

/** 200 with a body that is JSON text already. */
export function jsonReply(body: string): HttpReply {
  return { status: 200, headers: JSON_HEADERS, body };
}

/** `{"status":"ok"}`: the success body of writes [decisions: Success body]. */
export const OK_REPLY: HttpReply = Object.freeze(jsonReply('{"status":"ok"}'));

/** The same where a promise of nothing resolved. */
export const okReply = (): HttpReply => OK_REPLY;
