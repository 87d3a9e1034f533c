// Sends requests to endpoints over HTTP. The address is checked when the host name is resolved and
// again when the socket has connected. Redirects are not followed. State: one pool of connections
// for each sender.

import { isIPv6, type LookupFunction, type Socket } from "node:net";
import { Agent, buildConnector, request } from "undici";
import { type AddressRules, hostOf, isAddress, type Resolve } from "./addresses.ts";

/** Maximum number of bytes of a reply that are read. The rest is discarded with its connection. */
const MAX_REPLY_BYTES = 65_536;
/** Number of bytes of a failed reply that are kept with the attempt. */
const MAX_EXCERPT_BYTES = 1024;
const MAX_HEAD_BYTES = 16_384;
const CONNECT_MS = 5000;
const IDLE_MS = 10_000;

/** Outcome of one request. */
export interface Outcome {
  /** HTTP status, 0 if there was no complete reply. */
  readonly status: number;
  /** Why there was no complete reply, "" if there was. Never contains the body of the request. */
  readonly error: string;
  /** First KiB of the body of a reply that is not 2xx. */
  readonly reply: string;
  /** Value of the header `Retry-After`, in milliseconds from now. */
  readonly retryAfterMs: number | undefined;
  readonly durationMs: number;
}

interface OutgoingRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface Sender {
  /** Sends a request. Never rejects. Ends with an error after `timeoutMs`. */
  send(request: OutgoingRequest): Promise<Outcome>;
  /** Ends the requests in progress and closes the connections. */
  close(): Promise<void>;
}

/** An address that the rules refuse. */
class RefusedAddress extends Error {}

export function createSender({
  rules,
  resolve,
  timeoutMs,
  maxConnections,
}: {
  readonly rules: AddressRules;
  readonly resolve: Resolve;
  readonly timeoutMs: number;
  readonly maxConnections: number;
}): Sender {
  const closing = new AbortController();
  const dispatcher = new Agent({
    connections: maxConnections,
    pipelining: 1,
    keepAliveTimeout: IDLE_MS,
    keepAliveMaxTimeout: IDLE_MS,
    maxHeaderSize: MAX_HEAD_BYTES,
    connect: checkedConnector(rules, resolve),
  });
  return {
    async send({ url, headers, body }) {
      const startedMs = performance.now();
      const signal = AbortSignal.any([AbortSignal.timeout(timeoutMs), closing.signal]);
      const end = (outcome: Omit<Outcome, "durationMs">): Outcome => ({
        ...outcome,
        durationMs: Math.round(performance.now() - startedMs),
      });
      try {
        const reply = await request(url, { method: "POST", headers, body, dispatcher, signal });
        const excerpt = await readExcerpt(reply.body);
        const status = reply.statusCode;
        const isSuccess = status >= 200 && status < 300;
        return end({
          ...{ status, error: "", reply: isSuccess ? "" : excerpt },
          retryAfterMs: retryAfterMs(reply.headers["retry-after"], Date.now()),
        });
      } catch (error) {
        const cause = closing.signal.aborted
          ? "The node is shutting down"
          : causeOf(error, timeoutMs);
        return end({ status: 0, error: cause, reply: "", retryAfterMs: undefined });
      }
    },

    async close() {
      closing.abort();
      await dispatcher.destroy();
    },
  };
}

/** Reads a reply up to its limit and returns the beginning. Rejects if the reply is cut short. */
async function readExcerpt(body: AsyncIterable<Buffer> & { destroy(): unknown }): Promise<string> {
  const pieces: Buffer[] = [];
  let size = 0;
  let excerptSize = 0;
  for await (const piece of body) {
    size += piece.length;
    if (excerptSize < MAX_EXCERPT_BYTES) {
      const excerpt = Buffer.from(piece.subarray(0, MAX_EXCERPT_BYTES - excerptSize));
      pieces.push(excerpt);
      excerptSize += excerpt.length;
    }
    if (size > MAX_REPLY_BYTES) {
      body.destroy();
      break;
    }
  }
  return Buffer.concat(pieces).toString();
}

function checkedConnector(rules: AddressRules, resolve: Resolve): buildConnector.connector {
  const options = { timeout: CONNECT_MS, maxCachedSessions: 0, allowH2: false };
  // One connector for each scheme, because the rules for an address depend on the scheme.
  const connectors = [true, false].map((isEncrypted) =>
    buildConnector({ ...options, lookup: checkedLookup(rules, resolve, isEncrypted) }),
  );
  return (target, callback) => {
    const isEncrypted = target.protocol === "https:";
    const host = hostOf(target);
    // Node.js does not call `lookup` for an IP address.
    const refusal = isAddress(host) ? rules.refusal(host, isEncrypted) : undefined;
    if (refusal !== undefined) return callback(new RefusedAddress(refusal), null);
    connectors[isEncrypted ? 0 : 1]?.(target, (error, socket) => {
      if (error !== null || socket === null)
        return callback(error ?? new Error("There is no connection"), null);
      const refused = connectedRefusal(rules, socket, isEncrypted);
      if (refused === undefined) return callback(null, socket);
      socket.destroy();
      callback(new RefusedAddress(refused), null);
    });
  };
}

function connectedRefusal(rules: AddressRules, socket: Socket, isEncrypted: boolean) {
  const { remoteAddress } = socket;
  return remoteAddress === undefined
    ? "The connection has no address"
    : rules.refusal(remoteAddress, isEncrypted);
}

/** Resolves a host name and refuses it if one of its addresses is refused. */
function checkedLookup(
  rules: AddressRules,
  resolve: Resolve,
  isEncrypted: boolean,
): LookupFunction {
  return (host, options, callback) => {
    resolve(host).then(
      (addresses) => {
        const refusal = addresses
          .map((address) => rules.refusal(address, isEncrypted))
          .find((reason) => reason !== undefined);
        if (refusal !== undefined) return callback(new RefusedAddress(refusal), "", 0);
        const all = addresses.map((address) => ({ address, family: isIPv6(address) ? 6 : 4 }));
        if (options.all) callback(null, all);
        else callback(null, all[0]?.address ?? "", all[0]?.family);
      },
      (error: Error) => callback(error, "", 0),
    );
  };
}

/** Returns the cause of a failure, for the owner of the endpoint. */
function causeOf(error: unknown, timeoutMs: number): string {
  if (!(error instanceof Error)) return String(error);
  if (error instanceof RefusedAddress) return error.message;
  if (error.cause instanceof RefusedAddress) return error.cause.message;
  if (error.name === "TimeoutError") return `There was no complete reply within ${timeoutMs} ms`;
  const code = codeOf(error);
  return code === "" ? error.message : `${error.message} (${code})`;
}

function codeOf(error: Error): string {
  return "code" in error && typeof error.code === "string" ? error.code : "";
}

/** Parses seconds or a date [RFC 9110, section 10.2.3]. Returns `undefined` for anything else. */
function retryAfterMs(
  value: string | readonly string[] | undefined,
  nowMs: number,
): number | undefined {
  const text = typeof value === "string" ? value.trim() : "";
  if (/^\d{1,9}$/.test(text)) return Number(text) * 1000;
  const date = /[a-z]/i.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isNaN(date) ? undefined : Math.max(0, date - nowMs);
}
