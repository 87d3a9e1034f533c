// Bytes that are not a valid HTTP request: broken heads, wrong lengths, other protocols and random
// bytes.

import { Random } from "../support/random.ts";

const head = (...lines: readonly string[]) => `${lines.join("\r\n")}\r\n\r\n`;
const post = (...headers: readonly string[]) =>
  head("POST /user/onlinestatus HTTP/1.1", "Host: x", ...headers);

/**
 * Broken requests by name. Each is sent on its own connection, and none may be answered with
 * success.
 */
export const BROKEN_REQUESTS: Readonly<Record<string, string | Uint8Array>> = {
  "no request line": head(""),
  "no version": head("GET /healthz"),
  "version 0.9": "GET /healthz\r\n",
  "version 9.9": head("GET /healthz HTTP/9.9", "Host: x"),
  "HTTP/2": head("PRI * HTTP/2.0", "", "SM"),
  "no host": head("GET /healthz HTTP/1.1"),
  "no colon": head("GET /healthz HTTP/1.1", "Host: x", "nonsense"),
  "space before colon": head("GET /healthz HTTP/1.1", "Host: x", "A : b"),
  "NUL in a header": head("GET /healthz HTTP/1.1", "Host: x", "A: \0"),
  "NUL in the path": head("GET /health\0z HTTP/1.1", "Host: x"),
  "line feeds only": "GET /healthz HTTP/1.1\nHost: x\n\n",
  "huge header": head("GET /healthz HTTP/1.1", "Host: x", `A: ${"b".repeat(100_000)}`),
  "huge path": head(`GET /${"a".repeat(100_000)} HTTP/1.1`, "Host: x"),
  "1000 headers": head("GET /healthz HTTP/1.1", "Host: x", ...Array<string>(1000).fill("A: b")),
  "negative length": post("Content-Length: -1"),
  "length of words": post("Content-Length: many"),
  "length beyond numbers": post("Content-Length: 99999999999999999999999"),
  "length and chunks": `${post("Content-Length: 4", "Transfer-Encoding: chunked")}0\r\n\r\n`,
  "chunks and length": `${post("Transfer-Encoding: chunked", "Content-Length: 4")}0\r\n\r\n`,
  "unknown transfer coding": `${post("Transfer-Encoding: gzip")}[]`,
  "chunk size of words": `${post("Transfer-Encoding: chunked")}zz\r\n[]\r\n0\r\n\r\n`,
  "chunk beyond numbers": `${post("Transfer-Encoding: chunked")}fffffffffffffffff\r\n[]`,
  "chunk that is longer": `${post("Transfer-Encoding: chunked")}1\r\n[]]]]\r\n0\r\n\r\n`,
  "TLS hello": Buffer.from("160301020001000001fc0303", "hex"),
  noise: new Random(1).bytes(4000),
  zeros: new Uint8Array(4000),
  "WebSocket frames": Buffer.from("8280000000008a80000000008880000000000", "hex"),
};

/** Returns a damaged and truncated request. */
export function randomRequest(seed: number): Uint8Array {
  const random = new Random(seed);
  const bytes = Buffer.from(`${post("Content-Length: 7", "Token: x")}["a"]\r\n`);
  for (let i = 0; i <= random.below(6); i++) bytes[random.below(bytes.length)] = random.below(256);
  return bytes.subarray(0, random.below(bytes.length) + 1);
}

/** Queries of GET /channel/messages that must be refused. */
export const BROKEN_QUERIES: readonly string[] = [
  "",
  "channel_id=g",
  "channel_type=2",
  "channel_id=g&channel_type=3",
  "channel_id=g&channel_type=2.0",
  "channel_id=g&channel_type=2&limit=0",
  "channel_id=g&channel_type=2&limit=501",
  "channel_id=g&channel_type=2&limit=1e2",
  "channel_id=g&channel_type=2&limit=",
  "channel_id=g&channel_type=2&limit=-1",
  "channel_id=g&channel_type=2&limit=99999999999999999999",
  "channel_id=g&channel_type=2&from_seq=-1",
  "channel_id=g&channel_type=2&to_seq=9007199254740993",
  "channel_id=g&channel_type=2&order=__proto__",
  "channel_id=%&channel_type=2",
  "channel_id=%zz&channel_type=2",
  "channel_id=%c3&channel_type=2",
  "channel_id=%ed%a0%80&channel_type=2",
  "channel_id=a%00b&channel_type=2",
  "channel_id=a%40b&channel_type=2",
  "channel_id=g&channel_type=1",
  "channel_id=g&channel_type=1&uid=",
  "channel_id=g&channel_type=1&uid=a%26b",
  "channel_id[]=g&channel_type[]=2",
  "__proto__=g&constructor=2",
  "&&&===%3D",
];

/** Paths of GET /stream that must be refused, or answered with 404. */
export const BROKEN_STREAM_PATHS: readonly string[] = [
  "/stream/2/g/none",
  "/stream/3/g/s",
  "/stream/2.0/g/s",
  "/stream/__proto__/g/s",
  "/stream/1/g/s",
  "/stream/1/g/s?uid=",
  "/stream/1/g/s?uid=a%26b",
  "/stream/2/%00/s",
  "/stream/2/a%40b/s",
  `/stream/2/${"x".repeat(129)}/s`,
  `/stream/2/g/${"x".repeat(129)}`,
  "/stream/2/g/%ed%a0%80",
  "/stream/2/g/s?from=-1",
  "/stream/2/g/s?from=1e2",
  "/stream/2/g/s?from=9007199254740993",
  "/stream/2/g/s?from=99999999999999999999",
  "/stream/2/g/s?uid=a&token=wrong",
  "/stream/2/g/s?uid=a&token=&device_flag=9",
  "/stream/2/g/s?uid=____system&token=x",
  "/stream//g/s",
];
