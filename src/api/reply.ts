// Replies of successful calls, and the headers that all replies of the control plane share.

import type { HttpReply } from "../transport/types.ts";

export const JSON_HEADERS: Readonly<Record<string, string>> = Object.freeze({
  "content-type": "application/json; charset=utf-8",
  "cache-control": "no-store",
  "x-content-type-options": "nosniff",
});

/**
 * Lets pages from any origin read the reply. This is safe, because browsers do not add API
 * credentials on their own.
 */
export const OPEN_TO_PAGES: Readonly<Record<string, string>> = Object.freeze({
  "access-control-allow-origin": "*",
});

/** 204 reply to a reader that already has all events of an ended stream. */
export const NOTHING_REPLY: HttpReply = Object.freeze({
  status: 204,
  headers: Object.freeze({
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  }),
  body: "",
});

export function jsonReply(body: string): HttpReply {
  return { status: 200, headers: JSON_HEADERS, body };
}

export const OK_REPLY: HttpReply = Object.freeze(jsonReply('{"status":"ok"}'));

export const okReply = (): HttpReply => OK_REPLY;
