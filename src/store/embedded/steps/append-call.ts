// A call on its way through the queue of the message path, and what must never get into it. Owns nothing.

import { BrokerError } from "../../../broker/errors.ts";
import type { Message } from "../../../broker/model.ts";
import type {
  Appended,
  ClusterEvent,
  MessageDraft,
} from "../../../broker/ports.ts";
import type { MemtableRecord } from "../engine/memtable.ts";

/** Longest key of a channel, and longest id or label: any two fit a database key (1978 bytes). Edges refuse far shorter ones. */
export const MAX_KEY_UNITS = 603;
export const MAX_LABEL_UNITS = 300;
const MAX_EXPIRE_S = 0xffff_ffff;
/** A call of another kind that takes its turn among the messages. */
export interface QueuedStep {
  /** The message it assigned. */
  readonly record: MemtableRecord | undefined;
  /** Assigns what it wants in the batch under way; answers a refusal at once. */
  assign(nowMs: number): void;
  /** All of it is durable: shows, tells and answers it. */
  settle(tell: (event: ClusterEvent) => void): void;
  /** Rolls back what it assigned but `record`, newest first: it was not written. */
  rollBack(): void;
  /** Harmless once it is answered. */
  reject(error: BrokerError): void;
}

/** A call under way. One shape for both kinds. */
export interface Call {
  /** Undefined: a message. */
  readonly step: QueuedStep | undefined;
  readonly draft: MessageDraft;
  /** Memory it takes while it is queued, about. */
  readonly bytes: number;
  readonly resolve: (answer: Appended) => void;
  readonly reject: (error: BrokerError) => void;
  /** Its own message; undefined while not assigned and for a retry. */
  message: Message | undefined;
  /** Its place in the memtable; undefined when nothing of it is kept. */
  record: MemtableRecord | undefined;
  /** The unsettled first call that this one repeats. */
  original: MemtableRecord | undefined;
}

/** How a message's call is answered. */
type Answers = Pick<Call, "resolve" | "reject">;

export function messageCall(
  draft: MessageDraft,
  bytes: number,
  { resolve, reject }: Answers,
): Call {
  return {
    step: undefined,
    draft,
    bytes,
    resolve,
    reject,
    message: undefined,
    record: undefined,
    original: undefined,
  };
}

/** It answers for itself. */
export function stepCall(step: QueuedStep, bytes: number): Call {
  return {
    step,
    draft: NO_DRAFT,
    bytes,
    resolve: answersItself,
    reject: (error) => step.reject(error),
    message: undefined,
    record: undefined,
    original: undefined,
  };
}

/** Stands for the draft of a call that is no message. */
const NO_DRAFT: MessageDraft = {
  key: "",
  channel: { id: "", type: 1 },
  fromUid: "",
  clientMsgNo: "",
  header: { noPersist: true, redDot: false },
  expireS: 0,
  streamNo: undefined,
  tagKey: undefined,
  payload: new Uint8Array(0),
  origin: undefined,
  recipients: undefined,
  permission: "granted",
};

function answersItself(): void {}

/** What no record or database key can hold: it must not reach a batch, where it would fail others. */
export function refusal(draft: MessageDraft): BrokerError | undefined {
  if (
    draft.key.length > MAX_KEY_UNITS ||
    draft.channel.id.length > MAX_LABEL_UNITS ||
    draft.fromUid.length > MAX_LABEL_UNITS ||
    draft.clientMsgNo.length > MAX_LABEL_UNITS ||
    (draft.streamNo?.length ?? 0) > MAX_LABEL_UNITS ||
    (draft.tagKey?.length ?? 0) > MAX_LABEL_UNITS
  )
    return new BrokerError("too_large");
  const { expireS } = draft;
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    return new BrokerError("bad_request", {
      message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
    });
  return undefined;
}
