// Checks a request's head for errors that uWebSockets.js ignores: ambiguous headers, invalid hosts,
// and trailers that the driver cannot read. The same pass measures the size of the head and reads
// the headers for the handlers.

import { isIPv4, isIPv6 } from "node:net";
import { OrderedLookup } from "../lib/ordered-lookup.ts";
import { FORWARDED_FOR } from "./client-addresses.ts";
import type { DriverRequest, HeadProblem } from "./driver.ts";
import type { HttpReply, ListenerSpec } from "./types.ts";

export type AnnouncedBody = "none" | "declared" | "large" | "chunked";

/** Size above which a refusal does not wait for a declared body. */
const LARGE_BYTES = 65_536;

/** Headers that are checked. LENGTH, CODING and CONNECTION are indexes into this list. */
const CHECKED = ["host", "content-length", "transfer-encoding", "connection", "trailer"];
const LENGTH = 1;
const CODING = 2;
const CONNECTION = 3;
/** Number of bytes around the name and value of each header: a colon, a space, CR and LF. */
const LINE_BYTES = 4;
/** Number of bytes of a POST request line without path and query, and of the empty line. */
const FRAME_BYTES = "POST ? HTTP/1.1\r\n\r\n".length;
const NONE = -1;
/** Number of header positions at which `OrderedLookup` remembers the most recent header name. */
const MAX_REMEMBERED = 32;

/**
 * Headers whose values are joined if they occur several times. All are lists except
 * `sec-websocket-key`. Its joined value is invalid, so a handshake with several keys is refused.
 */
const LISTS: ReadonlySet<string> = new Set([
  FORWARDED_FOR,
  "connection",
  "upgrade",
  "sec-websocket-key",
  "sec-websocket-protocol",
]);
/**
 * Matches a list that contains `close`. uWebSockets.js recognises `close` only if it is the whole
 * list.
 */
const CLOSE_AMONG_OTHERS = /(^|,)[ \t]*close[ \t]*(,|$)/i;

/** Header names with their indexes in the values of a `HeadCheck`. */
export type HeaderSelection = readonly { readonly name: string; readonly index: number }[];

type HeadSpec = Pick<ListenerSpec, "driver" | "http" | "onHeadRefused">;

/** Returns the reply to a head with this problem, and reports the problem to `onHeadRefused`. */
export function refuseHead(
  problem: HeadProblem,
  message: string,
  { http, onHeadRefused }: Omit<HeadSpec, "driver">,
): HttpReply {
  onHeadRefused(problem);
  switch (problem) {
    case "too_large":
      return http?.headTooLarge() ?? { status: 431, body: "" };
    case "no_room":
      return http?.busy() ?? { status: 503, body: "" };
    case "malformed":
      return http?.malformed(message) ?? { status: 400, body: "" };
  }
}

export class HeadCheck {
  readonly #indexes = new Map<string, number>();
  readonly #lookup: OrderedLookup<number>;
  readonly #values: string[] = [];
  readonly #counts: number[] = [];
  readonly #spec: HeadSpec;
  /** Number of the current request's headers that have been recorded. */
  #place = 0;
  #bytes = 0;
  /** Query of the last checked request, without the `?`. */
  query = "";
  #validHost = "";

  constructor(names: Iterable<string>, spec: HeadSpec) {
    this.#spec = spec;
    for (const name of [...CHECKED, ...names])
      if (!this.#indexes.has(name)) this.#indexes.set(name, this.#indexes.size);
    this.#lookup = new OrderedLookup(this.#indexes, MAX_REMEMBERED);
    for (const _ of this.#indexes) {
      this.#values.push("");
      this.#counts.push(0);
    }
  }

  /**
   * Records a header. If a header in `LISTS` occurs several times, its values are joined, because
   * some proxies add a second X-Forwarded-For header.
   */
  readonly #record = (name: string, value: string): void => {
    this.#bytes += name.length + value.length + LINE_BYTES;
    const index = this.#lookup.get(name, this.#place++);
    if (index === undefined) return;
    const count = this.#counts[index] ?? 0;
    if (count === 0) this.#values[index] = value;
    else if (LISTS.has(name)) this.#values[index] += `,${value}`;
    this.#counts[index] = count + 1;
  };

  /**
   * Returns the reply to a head that is too large or not valid [RFC 9112 3.2, 6.3, 7.1.2], and
   * reports the problem to `onHeadRefused`. Returns `undefined` for a valid head. `path` is the
   * request's path, which is a parameter because most callers know it without a call to the
   * library.
   */
  refusal(req: DriverRequest, path: string): HttpReply | undefined {
    // `fill` would be a call into C++, which costs more than a loop over so few items.
    for (let i = 0; i < this.#counts.length; i++) {
      this.#values[i] = "";
      this.#counts[i] = 0;
    }
    this.query = req.getQuery() ?? "";
    this.#bytes = path.length + this.query.length + FRAME_BYTES;
    this.#place = 0;
    req.forEach(this.#record);
    if (this.#bytes > this.#spec.driver.maxHeadBytes)
      return refuseHead("too_large", "", this.#spec);
    const problem = this.#problem(req);
    return problem === undefined ? undefined : refuseHead("malformed", problem, this.#spec);
  }

  /** Returns the error message, or `undefined` if the head is valid. */
  #problem(req: DriverRequest): string | undefined {
    const [hosts = 0, lengths = 0, codings = 0, , trailers = 0] = this.#counts;
    const [host = "", length = "", coding = ""] = this.#values;
    const mayLackHost = hosts === 0 && req.isHttp10?.() === true;
    if (hosts !== 1 && !mayLackHost) return "The request must have exactly one Host header";
    if (hosts === 1 && !this.#isValidHost(host))
      return "The Host header does not contain a valid host";
    if (codings > 0 && lengths > 0)
      return "The request must not have both Content-Length and Transfer-Encoding";
    if (codings > 1 || (codings === 1 && !isChunked(coding)))
      return "The only accepted Transfer-Encoding is chunked";
    if (codings > 0 && trailers > 0 && !this.#spec.driver.readsTrailers)
      return "This address does not accept trailers; send the request without the Trailer header";
    if (lengths > 1) return "The request must have at most one Content-Length header";
    if (lengths === 1 && !/^\d+$/.test(length)) return "Content-Length must be a number";
    return undefined;
  }

  /**
   * Returns a header's value, or `""` if the header is absent. If the header occurs several times,
   * returns its first value. For a header in `LISTS`, returns all its values joined by commas.
   */
  value(name: string): string {
    return this.#values[this.#indexes.get(name) ?? NONE] ?? "";
  }

  /** Prepares a list of names for `present`. Each name must have been passed to the constructor. */
  select(names: readonly string[]): HeaderSelection {
    return names.map((name) => ({ name, index: this.#indexes.get(name) ?? NONE }));
  }

  /** Returns the selected headers that the last checked request has, each as `value` returns it. */
  present(selection: HeaderSelection): Readonly<Record<string, string>> {
    const headers: Record<string, string> = {};
    for (const { name, index } of selection) {
      const value = this.#values[index] ?? "";
      if (value !== "") headers[name] = value;
    }
    return headers;
  }

  get body(): AnnouncedBody {
    if ((this.#counts[CODING] ?? 0) > 0) return "chunked";
    const bytes = this.bodyBytes;
    if (bytes > LARGE_BYTES) return "large";
    return bytes > 0 ? "declared" : "none";
  }

  /** True if the client asks for the connection to be closed after the reply. */
  get isLast(): boolean {
    const connection = this.#values[CONNECTION] ?? "";
    return connection.length >= "close".length && CLOSE_AMONG_OTHERS.test(connection);
  }

  get bodyBytes(): number {
    return Number(this.#values[LENGTH]);
  }

  #isValidHost(host: string): boolean {
    if (host === this.#validHost) return host !== "";
    if (!isHost(host)) return false;
    this.#validHost = host;
    return true;
  }
}

function isChunked(coding: string): boolean {
  return coding.toLowerCase() === "chunked";
}

const BRACKETED = /^\[([0-9A-Fa-f:.]+)\](?::(\d{0,5}))?$/;
const NAMED = /^([A-Za-z0-9._~!$&'()*+,;=%-]+)(?::(\d{0,5}))?$/;

/**
 * Returns true for a valid host. A name whose last label is a number must be an IPv4 address
 * [WHATWG URL].
 */
function isHost(text: string): boolean {
  const bracketed = BRACKETED.exec(text);
  const match = bracketed ?? NAMED.exec(text);
  const name = match?.[1];
  if (name === undefined || Number(match?.[2] ?? 0) > 65_535) return false;
  if (bracketed !== null) return isIPv6(name);
  return isIPv4(name) || !/(^|\.)\d+\.?$/.test(name);
}
