// Replies of the Durable Streams protocol [PROTOCOL.md 5, 10]. Pure functions.

import { formatOffset, type LogOffset } from "../../broker/log-frame.ts";
import type { HttpReply } from "../../transport/types.ts";
import { errorReply } from "../errors.ts";
import { VIEWER_HEADERS } from "../stream-request.ts";

const NEXT_OFFSET = "stream-next-offset";
export const UP_TO_DATE = "stream-up-to-date";
export const CLOSED = "stream-closed";
export const CURSOR = "stream-cursor";

/** Request headers of the protocol, and the headers that Jindou adds to it. */
export const STREAM_REQUEST_HEADERS = [
  "content-type",
  "if-none-match",
  "stream-ttl",
  "stream-expires-at",
  "stream-closed",
  "stream-seq",
  "stream-forked-from",
  "stream-fork-offset",
  "stream-fork-sub-offset",
  "producer-id",
  "producer-epoch",
  "producer-seq",
  "jindou-from",
  "jindou-fork-sig",
];

const EXPOSED = [
  "Stream-Next-Offset",
  "Stream-Cursor",
  "Stream-Up-To-Date",
  "Stream-Closed",
  "Stream-TTL",
  "Stream-Expires-At",
  "Stream-SSE-Data-Encoding",
  "Producer-Epoch",
  "Producer-Seq",
  "Producer-Expected-Seq",
  "Producer-Received-Seq",
  "ETag",
  "Location",
  "Retry-After",
];

/** Headers of every reply, including errors. They let pages from any origin read the reply. */
export const STREAM_REPLY_HEADERS: Readonly<Record<string, string>> = Object.freeze({
  "x-content-type-options": "nosniff",
  "cross-origin-resource-policy": "cross-origin",
  "access-control-allow-origin": "*",
  "access-control-expose-headers": EXPOSED.join(", "),
  vary: ["authorization", "token", "origin", ...VIEWER_HEADERS].join(", "),
});

type Headers = Readonly<Record<string, string>>;

/** Returns a reply that must not be cached. */
export function streamReply(status: number, headers: Headers): HttpReply {
  return { status, headers: { "cache-control": "no-store", ...headers }, body: "" };
}

export function badHeader(name: string, problem: string): HttpReply {
  return errorReply("bad_request", {
    message: `The header ${name} ${problem}`,
    details: [{ path: name, message: problem }],
  });
}

export function offsetHeaders(tail: LogOffset, isClosed: boolean): Headers {
  const next = { [NEXT_OFFSET]: formatOffset(tail) };
  return isClosed ? { ...next, [CLOSED]: "true" } : next;
}
