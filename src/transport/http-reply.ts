// Functions that write a reply to an open HTTP response. A writer is called once per response,
// while the response is corked, and ends the response. `writeReplyAlone` ends the response in the
// next turn. State: the last headers that were joined.

import { STATUS_CODES } from "node:http";
import type { DriverResponse } from "./driver.ts";
import type { HttpReply } from "./types.ts";

/**
 * Writes a whole reply. The response must not be touched afterwards. `keepAlive` is the value of
 * the Keep-Alive header (see `Driver.keepAlive`) if the connection stays open.
 */
export type WriteReply = (res: DriverResponse, reply: HttpReply, keepAlive?: string) => void;

type HeadReply = Pick<HttpReply, "status" | "headers">;

export const BARE_500: HttpReply = { status: 500, body: "" };

const STATUS_LINES: readonly string[] = Array.from(
  { length: 600 },
  (_, status) => `${status} ${STATUS_CODES[status] ?? "Unknown"}`,
);

export const writeReply: WriteReply = (res, reply, keepAlive) => {
  writeHead(res, reply, keepAlive);
  if (reply.status === 204 || reply.status === 304) res.endWithoutBody();
  else res.end(reply.body);
};

export const writeReplyAndClose: WriteReply = (res, reply) => {
  writeHead(res, reply);
  res.end(reply.body, true);
};

/**
 * Writes the reply in the next turn and closes the connection. If another request arrived in the
 * same chunk, uWebSockets.js closes the connection before the next turn. It then neither serves
 * that request nor sends this reply.
 */
export const writeReplyAlone: WriteReply = (res, reply) => {
  let isOpen = true;
  res.onAborted(() => {
    isOpen = false;
  });
  setImmediate(() => {
    if (isOpen) res.cork(() => writeReplyAndClose(res, reply));
  });
};

/**
 * Writes a reply to HEAD, without a Content-Length. After a reply to HEAD with a
 * Content-Length, uWebSockets.js would drop the next request.
 */
export function writeHeadReply(res: DriverResponse, reply: HeadReply, keepAlive?: string): void {
  writeHead(res, reply, keepAlive);
  res.endWithoutBody();
}

export function writeLastHeadReply(res: DriverResponse, reply: HeadReply): void {
  writeHead(res, reply);
  res.writeHeader("connection", "close");
  res.endWithoutBody();
}

export function writeHeadReplyAndClose(res: DriverResponse, reply: HeadReply): void {
  writeHead(res, reply);
  res.end("", true);
}

/**
 * Writes the status and the headers. The body must follow in the same cork. With `keepAlive`, all
 * headers are written in one call, as lines in the value of the Keep-Alive header, because a call
 * to the library costs more than the bytes of a header.
 */
export function writeHead(
  res: DriverResponse,
  { status, headers }: HeadReply,
  keepAlive?: string,
): void {
  if (status !== 200) res.writeStatus(STATUS_LINES[status] ?? `${status} Unknown`);
  if (keepAlive !== undefined) {
    res.writeHeader("keep-alive", keptHeaders(headers, keepAlive));
    return;
  }
  for (const name in headers) {
    const value = headers[name];
    if (value !== undefined) res.writeHeader(name, value);
  }
}

/** The last headers that were joined, and the result. Most replies have the same headers. */
let joinedHeaders: HeadReply["headers"];
let joinedValue = "";

function keptHeaders(headers: HeadReply["headers"], keepAlive: string): string {
  if (headers !== joinedHeaders || joinedValue === "") {
    joinedValue = joinHeaders(headers, keepAlive);
    joinedHeaders = headers;
  }
  return joinedValue;
}

function joinHeaders(headers: HeadReply["headers"], first: string): string {
  let lines = first;
  for (const name in headers) {
    const value: unknown = headers[name];
    if (value === undefined) continue;
    if (typeof value !== "string") throw new TypeError(`The header ${name} is not a string`);
    lines += `\r\n${name}: ${value}`;
  }
  return lines;
}

/** Adds a header if it is absent. `name` must be in lower case. */
export function withHeader(reply: HttpReply, name: string, value: string): HttpReply {
  const headers = reply.headers ?? {};
  const isPresent = Object.keys(headers).some((key) => key.toLowerCase() === name);
  return isPresent ? reply : { ...reply, headers: { ...headers, [name]: value } };
}
