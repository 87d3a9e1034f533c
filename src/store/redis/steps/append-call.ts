// Encodes a message for `lua/append.lua` and decodes its result from the script's reply.

import { BrokerError } from "../../../broker/errors.ts";
import { MAX_EXPIRE_S } from "../../../broker/model.ts";
import type { AppendResult, MessageDraft } from "../../../broker/ports.ts";
import { asBrokerError } from "../../../redis/errors.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { Arg } from "../../../redis/script.ts";
import { encodeExtra, encodeRecord } from "../../../redis/wire.ts";
import { PAYLOAD_HASH_BYTES, payloadHash } from "../../payload-hash.ts";
import type { ChannelNames } from "./channel-names.ts";
import { dedupeKey } from "./channel-names.ts";
import { codeOf, refusalOf } from "./permission-tables.ts";

const APPENDED = 1;
const RETRY = 2;
const REFUSED = 3;
const REUSED = 5;
/**
 * Number of bytes of one result in the reply. If the reply contains ids of previous messages, these
 * ids follow the last result.
 */
const RESULT_BYTES = 26;
const ID_BYTES = 8;
const CALL_OVERHEAD_BYTES = 300;
const NOTHING = Buffer.alloc(0);

export type Outcome = Placement | { readonly refused: NonNullable<AppendResult["refused"]> };

/**
 * Result of an appended message. For a retry, the id and the seqs are those of the first message.
 */
export interface Placement {
  readonly refused?: undefined;
  readonly messageId: number;
  /** 0 if the message is not stored. */
  readonly messageSeq: number;
  readonly publicationSeq: number;
  readonly isRetry: boolean;
  readonly atMs: number;
  /** Id of the channel's previous message, 0 if that id is unknown. */
  readonly idBefore: number;
  readonly record: Buffer;
  /**
   * Resolves when the required replicas have the message, and rejects if they do not confirm it in
   * time. `undefined` if no replicas are required.
   */
  readonly durable: Promise<void> | undefined;
}

export class AppendCall {
  readonly names: ChannelNames;
  readonly bytes: number;
  /** Messages with the same `order` keep their order. `undefined` if the order does not matter. */
  readonly order: string | undefined;
  readonly outcome: Promise<Outcome>;
  readonly sinceMs = performance.now();
  readonly #fromUid: string;
  /** Key of the dedupe record, or "" if retries are not recognised. */
  readonly #dedupeKey: string;
  readonly #numbers: readonly number[];
  readonly #atMs: number;
  readonly #endsAtMs: number;
  readonly #record: Buffer;
  readonly #extra: Buffer;
  #resolve: (outcome: Outcome) => void = ignore;
  #reject: (error: unknown) => void = ignore;

  /** Throws `bad_request` if `expire` is invalid. */
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
    this.#endsAtMs = expiryOf(draft, atMs);
    this.#numbers = numbersOf(draft, this.#endsAtMs !== 0);
    this.#record = encodeRecord(draft, atMs);
    this.#extra = encodeExtra(draft);
    this.bytes = this.#record.length + this.#extra.length + CALL_OVERHEAD_BYTES;
    this.order = origin === undefined ? undefined : `${origin} ${key}`;
    this.outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  putArgs(args: Arg[], numbers: number[]): void {
    args.push(this.#fromUid, this.#record, this.#extra);
    if (this.#dedupeKey !== "") args.push(this.#dedupeKey);
    if (this.#endsAtMs !== 0) args.push(this.#endsAtMs);
    numbers.push(...this.#numbers);
  }

  /**
   * Resolves `outcome`. Returns false if the script could not append the message, in which case the
   * caller must call `fail`.
   */
  settle(
    { results, idsBefore }: AppendReply,
    at: number,
    durable: Promise<void> | undefined,
  ): boolean {
    const offset = at * RESULT_BYTES;
    const result = results[offset + 1];
    const publicationSeq = results.readDoubleBE(offset + 2);
    if (result === REFUSED) {
      const refused = refusalOf(publicationSeq);
      if (refused !== undefined) this.#resolve({ refused });
      return refused !== undefined;
    }
    if (result === REUSED) {
      this.#resolve({ refused: "client_msg_no_reused" });
      return true;
    }
    if (result !== APPENDED && result !== RETRY) return false;
    this.#resolve({
      messageId: results.readDoubleBE(offset + 10),
      messageSeq: results.readDoubleBE(offset + 18),
      publicationSeq,
      idBefore: idsBefore.length > 0 ? idsBefore.readDoubleBE(at * ID_BYTES) : 0,
      isRetry: result === RETRY,
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

export interface AppendReply {
  readonly results: Buffer;
  /**
   * For each message, the id (f64) of the previous message of its channel. Empty if no channel
   * needs these ids.
   */
  readonly idsBefore: Buffer;
  readonly errors: readonly BrokerError[];
}

export function readReply(
  reply: unknown,
  messages: number,
  errorOf: (text: string) => BrokerError,
): AppendReply {
  const [bytes = NOTHING, ...texts] = (Array.isArray(reply) ? reply : [reply]) as Buffer[];
  const errors = texts.map((text) => errorOf(String(text)));
  const end = messages * RESULT_BYTES;
  return {
    results: bytes.subarray(0, end),
    idsBefore: bytes.subarray(end),
    errors,
  };
}

export function isAnyStored(results: Buffer): boolean {
  for (let at = 1; at < results.length; at += RESULT_BYTES) {
    const result = results[at];
    if (result === APPENDED || result === RETRY) return true;
  }
  return false;
}

function numbersOf(
  { header, clientMsgNo, permission, allowsReuse, payload, sentPayload = payload }: MessageDraft,
  expires: boolean,
): readonly number[] {
  const [check, refused] = checkOf(permission);
  return [
    header.noPersist ? 0 : 1,
    header.redDot ? 1 : 0,
    clientMsgNo === "" ? 0 : 1,
    check,
    expires ? 1 : 0,
    refused,
    allowsReuse ? 1 : 0,
    ...(clientMsgNo === "" ? NO_HASH : payloadHash(sentPayload)),
  ];
}

/** Returns the numbers that scripts use for a check and a refusal. 0 means no check or refusal. */
export function checkOf(
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
    case "check_named":
      return [5, 0];
    default:
      return [0, codeOf(permission)];
  }
}

/**
 * Returns the time, in Unix milliseconds, at which a message expires, or 0 if it never expires.
 * Throws `bad_request` if `expire` is invalid.
 */
export function expiryOf({ expireS }: Pick<MessageDraft, "expireS">, atMs: number): number {
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    throw new BrokerError("bad_request", {
      message: `\`expire\` must be an integer from 0 to ${MAX_EXPIRE_S}`,
    });
  return expireS === 0 ? 0 : atMs + expireS * 1000;
}

const NO_HASH: readonly number[] = new Array(PAYLOAD_HASH_BYTES).fill(0);

function ignore(): void {}
