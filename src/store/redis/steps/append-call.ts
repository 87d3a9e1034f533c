// One message for the step that appends (`lua/append.lua`): what the step is given of it, and what the step's reply says became of it. No state.

import { BrokerError, type SendRefusal } from "../../../broker/errors.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { asBrokerError } from "../../../redis/errors.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { Arg } from "../../../redis/script.ts";
import { encodeExtra, encodeRecord } from "../../../redis/wire.ts";
import type { ChannelNames } from "./channel-names.ts";
import { dedupeKey } from "./channel-names.ts";
import { codeOf, refusalOf } from "./permission-tables.ts";

const KEEP = 1;
const RED_DOT = 2;
const DEDUPE = 4;
const CHECK = 8;
const EXPIRES = 16;
const CODE = 32;
const ARGS = 256;
const APPENDED = 0;
const RETRY = 1;
const REFUSED = 3;
const REPLY_NUMBERS = 4;
const MAX_EXPIRE_S = 0xffff_ffff;
/** Counted for a message beside its record. */
const CALL_BYTES = 300;

/** What became of a message. */
export type Outcome = Placed | { readonly refused: SendRefusal };

export interface Placed {
  readonly refused?: undefined;
  readonly messageId: number;
  /** 0: not kept. */
  readonly messageSeq: number;
  /** 0: it repeats a command. */
  readonly pub: number;
  /** These are of the first message. */
  readonly isRetry: boolean;
  /** When it was accepted, Unix milliseconds. */
  readonly atMs: number;
  /** With the place the parts of what the step published on the channel's topics, where it has some (`messagePublication`). */
  readonly record: Buffer;
  readonly extra: Buffer;
  /** Rejects `unavailable`; undefined: it is durable. */
  readonly durable: Promise<void> | undefined;
}

export class AppendCall {
  readonly names: ChannelNames;
  readonly bytes: number;
  /** Calls of one origin into one channel keep their order; undefined: it has none to keep. */
  readonly order: string | undefined;
  readonly outcome: Promise<Outcome>;
  /** Since when it waits, as `performance.now()` tells. */
  readonly sinceMs = performance.now();
  readonly #fromUid: string;
  /** Where a retry finds it; "": it is not looked up. */
  readonly #dedupeKey: string;
  readonly #flags: number;
  readonly #atMs: number;
  readonly #endsAtMs: number;
  readonly #record: Buffer;
  readonly #extra: Buffer;
  #resolve: (outcome: Outcome) => void = ignore;
  #reject: (error: unknown) => void = ignore;

  /** Throws `bad_request`. */
  constructor(
    names: ChannelNames,
    draft: MessageDraft,
    { keys, atMs }: { readonly keys: Keys; readonly atMs: number },
  ) {
    const { fromUid, origin, key } = draft;
    this.names = names;
    this.#fromUid = fromUid;
    this.#dedupeKey = draft.dedupe ? dedupeKey(keys, draft) : "";
    this.#atMs = atMs;
    this.#endsAtMs = endOf(draft, atMs);
    this.#flags = flagsOf(draft) | (this.#endsAtMs === 0 ? 0 : EXPIRES);
    this.#record = encodeRecord(draft, atMs);
    this.#extra = encodeExtra(draft);
    this.bytes = this.#record.length + this.#extra.length + CALL_BYTES;
    this.order = origin === undefined ? undefined : `${origin} ${key}`;
    this.outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  /** Adds what the step is given of it. */
  putArgs(args: Arg[]): void {
    const flagsAt = args.length;
    args.push(0, this.#fromUid, this.#record, this.#extra);
    if (this.#dedupeKey !== "") args.push(this.#dedupeKey);
    if (this.#endsAtMs !== 0) args.push(this.#endsAtMs);
    args[flagsAt] = this.#flags + ARGS * (args.length - flagsAt);
  }

  /** Answers by its numbers in the step's reply; false: it failed. */
  settle(
    reply: readonly unknown[],
    at: number,
    durable: Promise<void> | undefined,
  ): boolean {
    const numbers = reply as readonly number[]; // those of calls are, as the step's header says
    const first = at * REPLY_NUMBERS;
    const what = numbers[first];
    const messageId = numbers[first + 1] ?? 0;
    if (what === REFUSED) {
      const refused = refusalOf(messageId);
      if (refused !== undefined) this.#resolve({ refused });
      return refused !== undefined;
    }
    if (what !== APPENDED && what !== RETRY) return false;
    this.#resolve({
      messageId,
      messageSeq: numbers[first + 2] ?? 0,
      pub: numbers[first + 3] ?? 0,
      isRetry: what === RETRY,
      atMs: this.#atMs,
      record: this.#record,
      extra: this.#extra,
      durable,
    });
    return true;
  }

  fail(error: unknown): void {
    this.#reject(asBrokerError(error));
  }
}

/** The errors of a step's reply, in the order of the calls that failed. */
export function errorsOf(
  reply: readonly unknown[],
  calls: number,
): readonly Error[] {
  return reply.slice(calls * REPLY_NUMBERS).map((text) => {
    const error = new Error(String(text)); // a Buffer
    error.name = "ReplyError"; // as the library names what a server replied
    return error;
  });
}

/** Whether something of the call is stored, so that its answer waits until that is durable. */
export function isAnyStored(reply: readonly unknown[], calls: number): boolean {
  for (let at = 0; at < calls; at++) {
    const what = reply[at * REPLY_NUMBERS];
    if (what === APPENDED || what === RETRY) return true;
  }
  return false;
}

function flagsOf({ header, dedupe, permission }: MessageDraft): number {
  const isJudged = permission !== "check" && permission !== "granted";
  return (
    (header.noPersist ? 0 : KEEP) |
    (header.redDot ? RED_DOT : 0) |
    (dedupe ? DEDUPE : 0) |
    (permission === "check" ? CHECK : 0) |
    (isJudged ? CODE * codeOf(permission) : 0)
  );
}

/** Unix milliseconds; 0: never. */
function endOf({ expireS }: MessageDraft, atMs: number): number {
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    throw new BrokerError("bad_request", {
      message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
    });
  return expireS === 0 ? 0 : atMs + expireS * 1000;
}

function ignore(): void {}
