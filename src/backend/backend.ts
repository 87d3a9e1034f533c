// The package `jindou-server` for backends on Node.js. The exports of this file are its public
// interface. A call that fails with a retryable error is repeated if it has certainly changed
// nothing, or if repeating it is harmless. For example, a repeated message has the same
// client_msg_no, and a repeated event has the same id.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { JindouApiError } from "./errors.ts";
import { OPERATIONS, type Operations } from "./operations.ts";

export { type ErrorDetail, JindouApiError } from "./errors.ts";
export type * from "./operations.ts";
export { mintToken, type TokenAlgorithm, type TokenClaims, type TokenKey } from "./tokens.ts";
export {
  type VerifyOptions,
  verifyWebhook,
  WebhookError,
  type WebhookHeaders,
} from "./webhooks.ts";

export interface BackendOptions {
  /** URL of a node's API listener, or of a proxy in front of the nodes. */
  readonly url: string;
  /** The broker's `api.token`, or a manager's access token. Default: none. */
  readonly token?: string | undefined;
  /** Maximum number of times a failed call is repeated. Default: 3. */
  readonly retries?: number | undefined;
  /** Maximum duration of one attempt in milliseconds. Default: 10,000. */
  readonly timeoutMs?: number | undefined;
}

export type Backend = Operations;

interface Call {
  readonly name: keyof Operations;
  readonly method: string;
  readonly url: string;
  readonly body: string | undefined;
}

/** Statuses after which a repeated call may succeed. */
const RETRYABLE: ReadonlySet<number> = new Set([429, 502, 503, 504]);
/**
 * Codes of retryable errors with which a call is refused before it begins. After any other
 * retryable error, and without a reply from the broker, the call may have succeeded: `overloaded`,
 * for example, may come from the announcement of a change that is already stored.
 */
const REFUSED_AT_ONCE: ReadonlySet<string> = new Set(["rate_limited", "importing"]);
/**
 * Calls that must not be repeated if the first attempt may have succeeded, because a second attempt
 * would then fail or would make the change twice.
 */
const NOT_REPEATABLE: ReadonlySet<keyof Operations> = new Set([
  "createChannel",
  "removeSubscribers",
  "createWebhook",
  "createWebhookReplay",
  "deleteWebhook",
  "sendWebhookFailure",
  "rotateWebhookSecret",
  "rotateSigningKey",
  "logout",
]);
const FIRST_DELAY_MS = 200;
const MAX_DELAY_MS = 5000;
/**
 * Longest wait that the broker may request with `Retry-After`. If the broker requests a longer
 * wait, the call fails at once.
 */
const MAX_WAIT_MS = 10_000;

/**
 * Returns an object with a method for each call of the HTTP API. The methods reject only with a
 * `JindouApiError`.
 */
export function createBackend(options: BackendOptions): Backend {
  const { url, token, retries = 3, timeoutMs = 10_000 } = options;
  if (!/^https?:\/\//.test(url)) throw new TypeError("url must begin with https:// or http://");
  const base = url.replace(/\/+$/, "");
  const headers: Record<string, string> = { accept: "application/json" };
  if (token !== undefined) headers.authorization = `Bearer ${token}`;

  async function attempt({ method, url, body }: Call): Promise<Response> {
    const hasBody = body !== undefined;
    return fetch(url, {
      method,
      headers: hasBody ? { ...headers, "content-type": "application/json" } : headers,
      body: hasBody ? body : null,
      signal: AbortSignal.timeout(timeoutMs),
    });
  }

  async function run(call: Call): Promise<unknown> {
    for (let repeated = 0; ; repeated++) {
      const isLast = repeated >= retries;
      let waitMs = Math.min(FIRST_DELAY_MS * 2 ** repeated, MAX_DELAY_MS) * (0.5 + Math.random());
      try {
        const response = await attempt(call);
        waitMs = retryAfterMs(response) ?? waitMs;
        return await replyOf(response);
      } catch (error) {
        const failure = failureOf(error);
        if (isLast || waitMs > MAX_WAIT_MS || !mayRepeat(call.name, failure)) throw failure;
        await sleep(waitMs);
      }
    }
  }

  const calls = Object.entries(OPERATIONS).map(([key, operation]) => {
    const name = key as keyof Operations; // `Object.entries` loses the type of the keys
    const { method, path } = operation;
    return [
      name,
      (...values: readonly object[]) => {
        const body = "hasBody" in operation ? withKey(name, values[0] ?? {}) : undefined;
        const query = values["hasBody" in operation ? 1 : 0] ?? {};
        return run({
          ...{ name, method, url: base + targetOf(path, query) },
          body: body === undefined ? undefined : JSON.stringify(body),
        });
      },
    ];
  });
  return Object.fromEntries(calls) as Backend; // the table has a row for each call
}

function mayRepeat(name: keyof Operations, { code, status }: JindouApiError): boolean {
  const isRetryable = status === 0 || RETRYABLE.has(status);
  return isRetryable && (REFUSED_AT_ONCE.has(code) || !NOT_REPEATABLE.has(name));
}

/** Adds the id by which the broker recognises a repeated call, unless the caller has set it. */
function withKey(name: keyof Operations, body: object): object {
  if (name === "sendMessage" || name === "sendMessageToUsers") {
    const { client_msg_no } = body as { readonly client_msg_no?: string };
    return { ...body, client_msg_no: client_msg_no || randomUUID() };
  }
  if (name !== "sendEvent") return body;
  const { event } = body as { readonly event?: { readonly id?: string } };
  return { ...body, event: { ...event, id: event?.id || randomUUID() } };
}

/** Fills in the parameters of the path, and adds the other parameters as a query string. */
function targetOf(path: string, query: object): string {
  const remaining = new Map(Object.entries(query).filter(([, value]) => value !== undefined));
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const value = String(remaining.get(name) ?? "");
    remaining.delete(name);
    return encodeURIComponent(value);
  });
  if (remaining.size === 0) return filled;
  const search = new URLSearchParams();
  for (const [name, value] of remaining) search.append(name, String(value));
  return `${filled}?${search}`;
}

async function replyOf(response: Response): Promise<unknown> {
  const { status, ok } = response;
  if (status === 204) return undefined;
  const text = await response.text();
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const message = `The reply with status ${status} is not JSON: ${text.slice(0, 200)}`;
    throw new JindouApiError("bad_reply", message, { status, cause });
  }
  if (ok) return value;
  // Another server, such as a proxy, may have replied.
  const { code, error, details } = Object(value) as Record<string, unknown>;
  if (typeof code !== "string")
    throw new JindouApiError("bad_reply", `HTTP status ${status}: ${text.slice(0, 200)}`, {
      status,
    });
  throw new JindouApiError(code, typeof error === "string" ? error : `HTTP status ${status}`, {
    ...{ status, details: Array.isArray(details) ? details : [] },
  });
}

function retryAfterMs({ headers }: Response): number | undefined {
  const seconds = Number(headers.get("retry-after") ?? Number.NaN);
  return seconds >= 0 ? seconds * 1000 : undefined;
}

function failureOf(error: unknown): JindouApiError {
  if (error instanceof JindouApiError) return error;
  const { name, cause } = error as { readonly name?: string; readonly cause?: unknown };
  if (name === "TimeoutError")
    return new JindouApiError("timeout", "The broker did not reply in time", { cause: error });
  const detail = cause instanceof Error ? `: ${cause.message}` : "";
  return new JindouApiError("unreachable", `The broker cannot be reached${detail}`, {
    cause: error,
  });
}

/** Returns the payload of a message: its content as JSON text in standard Base64. */
export function payloadOf(content: {
  readonly type: number;
  readonly [field: string]: unknown;
}): string {
  return Buffer.from(JSON.stringify(content)).toString("base64");
}
