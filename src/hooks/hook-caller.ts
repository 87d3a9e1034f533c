// Calls one hook: signs the requests, limits the number of requests in progress, and pauses calls
// after repeated failures. State: the requests in progress, and the circuit breaker.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../broker/errors.ts";
import { CircuitBreaker, type CircuitState } from "../lib/circuit-breaker.ts";
import { FairSemaphore } from "../lib/fair-semaphore.ts";
import { KeyedWindow } from "../lib/keyed-window.ts";
import { Outgoing, OutgoingError } from "../outgoing/outgoing.ts";
import { signedHeaders, signingKeyOf } from "../outgoing/signature.ts";

export interface HookSettings {
  readonly url: string;
  readonly secret: string;
  readonly timeoutMs: number;
  readonly maxInFlight: number;
  readonly onFailure: "deny" | "allow";
  readonly staticHeaders: readonly { readonly name: string; readonly value: string }[];
}

/** Outcome of a call, as the metric `jindou_hook_requests_total` reports it. */
export type HookOutcome =
  | "allowed"
  | "refused"
  | "timeout"
  | "connection"
  | "status"
  | "answer"
  | "circuit_open"
  | "overloaded";

export interface HookPorts {
  /** Returns the current time in Unix milliseconds. */
  readonly clock: () => number;
  /** Called after each call to the hook. `ms` is the duration of the request, if one was sent. */
  onOutcome(outcome: HookOutcome, ms?: number): void;
  /** Called after a failed call. `detail` contains no payload and no secret. */
  onFailure(outcome: HookOutcome, detail: string): void;
  /** Called when the circuit breaker opens. */
  onOpened(): void;
}

const FAILURES_IN_ROW = 10;
const WINDOW = 100;
const OPEN_MS = 5000;
/** Maximum share of the calls in progress, and of the waiting calls, that one user may have. */
const USER_SHARE = 1 / 8;
/** Maximum number of waiting calls, as a multiple of `maxInFlight`. */
const WAITING_FACTOR = 32;
/** Maximum total size of the calls that wait or are in progress. A single call may exceed it. */
const MAX_PENDING_BYTES = 67_108_864;
const MAX_TEXT_LENGTH = 200;

/** A failed call, for which the hook returned no usable decision. */
class HookFailure extends Error {
  readonly outcome: HookOutcome;

  constructor(outcome: HookOutcome, message: string) {
    super(message);
    this.name = "HookFailure";
    this.outcome = outcome;
  }
}

/**
 * Thrown if the hook has replaced a message's payload with an invalid one. The message is refused
 * even if `onFailure` is `allow`. The refusal does not suggest a retry, because a retry would have
 * the same result.
 */
export class UnusablePayload extends HookFailure {
  constructor(message: string) {
    super("answer", message);
    this.name = "UnusablePayload";
  }
}

type Answer = Readonly<Record<string, unknown>>;

export class HookCaller {
  readonly #settings: HookSettings;
  readonly #ports: HookPorts;
  readonly #key: Buffer;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #outgoing: Outgoing;
  readonly #maxReplyBytes: number;
  readonly #breaker: CircuitBreaker;
  readonly #permits: FairSemaphore;
  readonly #users: KeyedWindow;
  #pending = 0;
  #pendingBytes = 0;

  constructor(settings: HookSettings, maxReplyBytes: number, ports: HookPorts) {
    const { secret, timeoutMs, maxInFlight, staticHeaders } = settings;
    const key = signingKeyOf(secret);
    if (key === undefined) throw new Error("a hook's secret is not a valid signing secret");
    this.#settings = settings;
    this.#ports = ports;
    this.#key = key;
    this.#headers = Object.fromEntries(
      staticHeaders.map(({ name, value }) => [name.toLowerCase(), value]),
    );
    this.#maxReplyBytes = maxReplyBytes;
    this.#outgoing = new Outgoing({ connections: maxInFlight, timeoutMs, maxReplyBytes });
    const limits = { failuresInRow: FAILURES_IN_ROW, window: WINDOW, openMs: OPEN_MS };
    this.#breaker = new CircuitBreaker(limits, () => performance.now(), ports.onOpened);
    const maxWaiting = maxInFlight * WAITING_FACTOR;
    this.#permits = new FairSemaphore(maxInFlight, maxWaiting, overloaded);
    this.#users = new KeyedWindow(userShareOf(maxInFlight), userShareOf(maxWaiting));
  }

  /** Number of calls that wait or are in progress. */
  get pending(): number {
    return this.#pending;
  }

  get circuit(): CircuitState {
    return this.#breaker.state;
  }

  /**
   * Calls the hook for a user. Returns the result of `read`, or `undefined` if the call failed and
   * the setting `onFailure` is `allow`. `read` must throw an `Error` if the reply does not have the
   * documented form. Throws `overloaded` or `refused_by_hook`. `refused_by_hook` suggests a retry
   * if the hook allows one, or if the call failed for a reason other than an `UnusablePayload`.
   */
  async ask<T>(
    uid: string,
    question: { readonly type: string; readonly data: object },
    read: (answer: Answer) => T,
  ): Promise<T | undefined> {
    try {
      return await this.#inTurn(uid, question, read);
    } catch (error) {
      if (!(error instanceof HookFailure)) throw error;
      this.#ports.onFailure(error.outcome, error.message);
      if (error instanceof UnusablePayload)
        throw new BrokerError("refused_by_hook", { message: UNUSABLE });
      if (this.#settings.onFailure === "allow") return undefined;
      throw failedHook();
    }
  }

  async #inTurn<T>(
    uid: string,
    question: { readonly type: string; readonly data: object },
    read: (answer: Answer) => T,
  ): Promise<T> {
    const nowMs = this.#ports.clock();
    const body = JSON.stringify({
      type: question.type,
      timestamp: new Date(nowMs).toISOString(),
      data: question.data,
    });
    const pass = this.#hasRoom(body.length) ? this.#users.enter(uid) : undefined;
    if (pass === undefined) {
      this.#ports.onOutcome("overloaded");
      throw overloaded();
    }
    this.#pending += 1;
    this.#pendingBytes += body.length;
    try {
      await pass.turn;
      pass.setSize(1);
      return await this.#permits.run(uid, () => this.#request(body, read));
    } finally {
      pass.leave();
      this.#pending -= 1;
      this.#pendingBytes -= body.length;
    }
  }

  #hasRoom(bytes: number): boolean {
    if (this.#pending >= this.#settings.maxInFlight * (WAITING_FACTOR + 1)) return false;
    return this.#pending === 0 || this.#pendingBytes + bytes <= MAX_PENDING_BYTES;
  }

  async #request<T>(body: string, read: (answer: Answer) => T): Promise<T> {
    const record = this.#breaker.admit();
    if (record === undefined) {
      this.#ports.onOutcome("circuit_open");
      throw new HookFailure("circuit_open", "the circuit breaker is open after failed calls");
    }
    const startedMs = performance.now();
    let outcome: HookOutcome = "allowed";
    let hasFailed = false;
    try {
      return await this.#decision(body, read);
    } catch (error) {
      outcome = error instanceof HookFailure ? error.outcome : "refused";
      hasFailed = error instanceof HookFailure && !(error instanceof UnusablePayload);
      throw error;
    } finally {
      record(hasFailed);
      this.#ports.onOutcome(outcome, performance.now() - startedMs);
    }
  }

  async #decision<T>(body: string, read: (answer: Answer) => T): Promise<T> {
    const answer = await this.#post(body);
    if (answer.allow === false) throw refusalOf(answer);
    if (answer.allow !== true)
      throw new HookFailure("answer", '"allow" in the response must be true or false');
    try {
      return read(answer);
    } catch (error) {
      if (error instanceof BrokerError || error instanceof HookFailure) throw error;
      throw new HookFailure("answer", error instanceof Error ? error.message : String(error));
    }
  }

  async #post(body: string): Promise<Answer> {
    const { url } = this.#settings;
    const headers = {
      ...{ "content-type": "application/json", "user-agent": "jindou" },
      ...this.#headers,
      ...signedHeaders([this.#key], { id: randomUUID(), nowMs: this.#ports.clock(), body }),
    };
    const reply = await this.#outgoing.post(url, headers, body).catch(toFailure);
    if (reply.status !== 200)
      throw new HookFailure("status", `the response has status ${reply.status} instead of 200`);
    if (reply.isCut)
      throw new HookFailure("answer", `the response has more than ${this.#maxReplyBytes} bytes`);
    return parseAnswer(reply.body);
  }

  async close(): Promise<void> {
    await this.#outgoing.close();
  }
}

function userShareOf(calls: number): number {
  return Math.max(1, Math.floor(calls * USER_SHARE));
}

function toFailure(error: unknown): never {
  if (!(error instanceof OutgoingError)) throw error;
  const { reason, message } = error;
  throw new HookFailure(reason === "timeout" ? "timeout" : "connection", message);
}

const decoder = new TextDecoder("utf-8", { fatal: true });

function parseAnswer(body: Uint8Array): Answer {
  try {
    const answer: unknown = JSON.parse(decoder.decode(body));
    if (typeof answer === "object" && answer !== null && !Array.isArray(answer))
      return answer as Answer; // a JSON object
  } catch {
    // handled below
  }
  throw new HookFailure("answer", "the response is not a JSON object in UTF-8");
}

const REFUSED = "Refused by the backend";
const UNUSABLE = "The backend changed the message into an invalid message";
/** Time after which a client may try again. */
const RETRY_MS = 1000;

/** Returns the error for a refusal. With `retry`, the client may try again after `RETRY_MS`. */
function refusalOf({ message, retry }: Answer): BrokerError {
  const text = typeof message === "string" ? shownText(message) : "";
  return new BrokerError("refused_by_hook", {
    message: text || REFUSED,
    ...(retry === true ? { retryAfterMs: RETRY_MS } : {}),
  });
}

/**
 * Returns the first `MAX_TEXT_LENGTH` characters of a text. Replaces control characters with
 * spaces, and lone surrogates with U+FFFD.
 */
function shownText(text: string): string {
  const characters = Array.from(text.replace(/\p{Cc}+/gu, " "), (character) =>
    /\p{Surrogate}/u.test(character) ? "\ufffd" : character,
  );
  return characters.slice(0, MAX_TEXT_LENGTH).join("").trim();
}

function failedHook(): BrokerError {
  return new BrokerError("refused_by_hook", {
    message:
      "The backend that decides about the request did not respond as expected. Try again later.",
    retryAfterMs: RETRY_MS,
  });
}

function overloaded(): BrokerError {
  return new BrokerError("overloaded", {
    message: "Too many requests are waiting for the backend's decision. Try again later.",
    retryAfterMs: RETRY_MS,
  });
}
