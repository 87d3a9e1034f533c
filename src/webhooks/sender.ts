// Sends requests to endpoints over HTTP, and describes their outcomes for the endpoints' owners.
// State: the connections of each sender.

import { connectorCreator, RefusedAddress, type Resolve } from "../outgoing/connector.ts";
import { Outgoing, OutgoingError } from "../outgoing/outgoing.ts";
import type { AddressRules } from "./addresses.ts";

/** Maximum number of bytes to read from a reply. The connection of a longer reply is closed. */
const MAX_REPLY_BYTES = 65_536;
/** Maximum number of bytes of an error reply that are stored with the attempt. */
const MAX_EXCERPT_BYTES = 1024;

export interface Outcome {
  /** HTTP status, or 0 if there was no complete reply. */
  readonly status: number;
  /**
   * Reason why there was no complete reply, or "" if there was one. Never contains the body of the
   * request.
   */
  readonly error: string;
  /** First KiB of the reply's body if the status is not 2xx, otherwise "". */
  readonly reply: string;
  /** Value of the `Retry-After` header, in milliseconds from now. */
  readonly retryAfterMs: number | undefined;
  readonly durationMs: number;
}

interface OutgoingRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface Sender {
  /**
   * Sends a request. Never rejects. If there is no complete reply within `timeoutMs`, the outcome
   * has an `error`.
   */
  send(request: OutgoingRequest): Promise<Outcome>;
  /** Aborts the requests in progress and closes the connections. */
  close(): Promise<void>;
}

export function createSender({
  rules,
  resolve,
  timeoutMs,
}: {
  readonly rules: AddressRules;
  readonly resolve: Resolve;
  readonly timeoutMs: number;
}): Sender {
  // The number of connections has no limit, because a webhook must not wait for the replies to
  // other webhooks with the same host. `MAX_IN_FLIGHT` limits the requests of each webhook.
  const outgoing = new Outgoing({
    ...{ timeoutMs, maxReplyBytes: MAX_REPLY_BYTES },
    connector: connectorCreator(
      (address, isEncrypted) => rules.refusal(address, isEncrypted),
      resolve,
    ),
  });
  return {
    async send({ url, headers, body }) {
      const startedMs = performance.now();
      const end = (outcome: Omit<Outcome, "durationMs">): Outcome => ({
        ...outcome,
        durationMs: Math.round(performance.now() - startedMs),
      });
      try {
        const reply = await outgoing.post(url, headers, body);
        const { status } = reply;
        const isSuccess = status >= 200 && status < 300;
        const excerpt = isSuccess ? "" : reply.body.toString("utf8", 0, MAX_EXCERPT_BYTES);
        return end({
          ...{ status, error: "", reply: excerpt },
          retryAfterMs: retryAfterMs(reply.headers["retry-after"], Date.now()),
        });
      } catch (error) {
        return end({ status: 0, error: causeOf(error), reply: "", retryAfterMs: undefined });
      }
    },

    close: () => outgoing.close(),
  };
}

/** Returns the cause of a failure as a sentence for the endpoint's owner. */
function causeOf(error: unknown): string {
  if (!(error instanceof OutgoingError)) return String(error);
  const { reason, message, cause } = error;
  const refusal = [cause, cause instanceof Error ? cause.cause : undefined].find(
    (origin) => origin instanceof RefusedAddress,
  );
  if (refusal !== undefined) return refusal.message;
  const code = cause instanceof Error && reason === "connection" ? codeOf(cause) : "";
  const text = `${message.charAt(0).toUpperCase()}${message.slice(1)}`;
  return code === "" || text.includes(code) ? text : `${text} (${code})`;
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
