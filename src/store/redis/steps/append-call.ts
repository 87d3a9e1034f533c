// One message for the step that appends (`lua/append.lua`): what the step is given of it, and what
// the step's reply says became of it. No state.

import { BrokerError, type SendRefusal } from "../../../broker/errors.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { asBrokerError, errorOfReply } from "../../../redis/errors.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { Arg } from "../../../redis/script.ts";
import { encodeExtra, encodeRecord } from "../../../redis/wire.ts";
import type { ChannelNames } from "./channel-names.ts";
import { dedupeKey } from "./channel-names.ts";
import { codeOf, refusalOf } from "./permission-tables.ts";

// What became of a message, in the step's reply.
const APPENDED = 1;
const RETRY = 2;
const REFUSED = 3;
/** Of each message in the reply; behind all of them the ids of messages before, if it has them. */
const ANSWER_BYTES = 26;
const ID_BYTES = 8;
const MAX_EXPIRE_S = 0xffff_ffff;
/** Counted for a message beside its record. */
const CALL_BYTES = 300;
const NOTHING = Buffer.alloc(0);

/** What became of a message. */
export type Outcome = Placed | { readonly refused: SendRefusal };

export interface Placed {
  readonly refused?: undefined;
  readonly messageId: number;
  /** 0: not kept. */
  readonly messageSeq: number;
  /** 0: it repeats a command. */
  readonly publicationSeq: number;
  /** These are of the first message. */
  readonly isRetry: boolean;
  /** When it was accepted, Unix milliseconds. */
  readonly atMs: number;
  /**
   * Of a personal channel whose users are in other slots the id of the message before it; 0: not
   * known.
   */
  readonly idBefore: number;
  readonly record: Buffer;
  /** Rejects `unavailable`; undefined: it is durable. */
  readonly durable: Promise<void> | undefined;
}

export class AppendCall {
  readonly names: ChannelNames;
  readonly bytes: number;
  /** Calls of one origin into one channel keep their order; undefined: it has none to keep. */
  readonly order: string | undefined;
  readonly outcome: Promise<Outcome>;
  /** When it began to wait, by `performance.now()`. */
  readonly sinceMs = performance.now();
  readonly #fromUid: string;
  /** Where a retry finds it; "": it is not looked up. */
  readonly #dedupeKey: string;
  readonly #numbers: readonly number[];
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
    this.#dedupeKey = draft.clientMsgNo === "" ? "" : dedupeKey(keys, draft);
    this.#atMs = atMs;
    this.#endsAtMs = endOf(draft, atMs);
    this.#numbers = numbersOf(draft, this.#endsAtMs !== 0);
    this.#record = encodeRecord(draft, atMs);
    this.#extra = encodeExtra(draft);
    this.bytes = this.#record.length + this.#extra.length + CALL_BYTES;
    this.order = origin === undefined ? undefined : `${origin} ${key}`;
    this.outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  /** Adds what the step is given of it: arguments, and bytes among the numbers in front of them. */
  putArgs(args: Arg[], numbers: number[]): void {
    args.push(this.#fromUid, this.#record, this.#extra);
    if (this.#dedupeKey !== "") args.push(this.#dedupeKey);
    if (this.#endsAtMs !== 0) args.push(this.#endsAtMs);
    numbers.push(...this.#numbers);
  }

  /** Answers by its bytes in the step's reply; false: it failed. */
  settle({ answers, idsBefore }: Reply, at: number, durable: Promise<void> | undefined): boolean {
    const first = at * ANSWER_BYTES;
    const what = answers[first + 1];
    const publicationSeq = answers.readDoubleBE(first + 2);
    if (what === REFUSED) {
      const refused = refusalOf(publicationSeq);
      if (refused !== undefined) this.#resolve({ refused });
      return refused !== undefined;
    }
    if (what !== APPENDED && what !== RETRY) return false;
    this.#resolve({
      messageId: answers.readDoubleBE(first + 10),
      messageSeq: answers.readDoubleBE(first + 18),
      publicationSeq,
      idBefore: idsBefore.length > 0 ? idsBefore.readDoubleBE(at * ID_BYTES) : 0,
      isRetry: what === RETRY,
      atMs: this.#atMs,
      record: this.#record,
      durable,
    });
    return true;
  }

  fail(error: unknown): void {
    this.#reject(asBrokerError(error));
  }
}

/** The step's reply: an answer for each message, and the errors of those that failed, in order. */
export interface Reply {
  readonly answers: Buffer;
  /** Of each message, or empty. */
  readonly idsBefore: Buffer;
  readonly errors: readonly BrokerError[];
}

/** Of so many messages. */
export function readReply(reply: unknown, messages: number): Reply {
  const [bytes = NOTHING, ...texts] = (Array.isArray(reply) ? reply : [reply]) as Buffer[]; // as its header says
  const errors = texts.map((text) => errorOfReply(String(text)));
  const end = messages * ANSWER_BYTES;
  return {
    answers: bytes.subarray(0, end),
    idsBefore: bytes.subarray(end),
    errors,
  };
}

/** Whether something of the call is stored, so that its answer waits until that is durable. */
export function isAnyStored(answers: Buffer): boolean {
  for (let at = 1; at < answers.length; at += ANSWER_BYTES) {
    const what = answers[at];
    if (what === APPENDED || what === RETRY) return true;
  }
  return false;
}

function numbersOf(
  { header, clientMsgNo, permission }: MessageDraft,
  expires: boolean,
): readonly number[] {
  const [check, refused] = judgementOf(permission);
  return [
    header.noPersist ? 0 : 1,
    header.redDot ? 1 : 0,
    clientMsgNo === "" ? 0 : 1,
    check,
    expires ? 1 : 0,
    refused,
  ];
}

/** Whether the step judges, and the refusal that was decided on. */
function judgementOf(
  permission: MessageDraft["permission"],
): readonly [check: number, refused: number] {
  switch (permission) {
    case "granted":
      return [0, 0];
    case "check":
      return [1, 0];
    case "check_friends":
      return [2, 0];
    case "check_exempt":
      return [3, 0];
    case "check_open":
      return [4, 0];
    default:
      return [0, codeOf(permission)];
  }
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
