// Computes the losses of a fail-over from what users can see: acknowledgements and messages shown
// to readers are compared with history. An acknowledged message that is not in history is lost, and
// a message that was shown but is not in history is retracted. Every other difference is an error.
// Pure functions.

import type {
  Acknowledgement,
  ObservedMessage,
  ObservedRange,
  SentMessage,
} from "../support/history-checker.ts";

export interface Losses {
  /** Acknowledged messages that are not in history. */
  readonly lost: readonly string[];
  /** Number of messages that a reader was shown and that are not in history. */
  readonly retracted: number;
  /**
   * Errors that no fail-over excuses: a message twice in history, a missing or wrong seq, or a
   * message that a reader was shown twice, out of order or not at all.
   */
  readonly errors: readonly string[];
}

export interface Observations {
  readonly acks: readonly (SentMessage & Acknowledgement)[];
  readonly histories: ReadonlyMap<string, ObservedRange>;
  /** Messages that each reader was shown in each channel, in order. */
  readonly shown: readonly {
    readonly name: string;
    readonly key: string;
    readonly messages: readonly ObservedMessage[];
  }[];
}

export function lossesOf({ acks, histories, shown }: Observations): Losses {
  const ids = new Set<number>();
  const errors: string[] = [];
  for (const [key, { messages, throughSeq }] of histories) {
    errors.push(...faultsOf(key, messages));
    if (messages.length !== throughSeq)
      errors.push(`${key}: history has ${messages.length} messages, but the head is ${throughSeq}`);
    for (const { messageId } of messages) ids.add(messageId);
  }
  const lost = acks.filter((ack) => !ack.noPersist && !ids.has(ack.messageId));
  let retracted = 0;
  for (const { name, key, messages } of shown) {
    const numbered = messages.filter(({ messageSeq }) => messageSeq > 0);
    const inHistory = numbered.filter(({ messageId }) => ids.has(messageId));
    retracted += numbered.length - inHistory.length;
    const { messages: stored = [] } = histories.get(key) ?? {};
    errors.push(...differences(`${name} of ${key}`, inHistory, stored));
  }
  return {
    lost: lost.map(
      ({ key, clientMsgNo, messageId }) => `${clientMsgNo} of ${key}, id ${messageId}`,
    ),
    retracted,
    errors,
  };
}

function faultsOf(key: string, messages: readonly ObservedMessage[]): string[] {
  const names = new Set<string>();
  const faults: string[] = [];
  let last = { messageId: 0, messageSeq: 0 };
  for (const message of messages) {
    const name = `${message.fromUid}/${message.clientMsgNo}`;
    if (names.has(name)) faults.push(`${key}: ${name} is in history twice`);
    names.add(name);
    if (message.messageSeq !== last.messageSeq + 1 || message.messageId <= last.messageId)
      faults.push(`${key}: ${name} with seq ${message.messageSeq} follows seq ${last.messageSeq}`);
    last = message;
  }
  return faults;
}

/** Returns how the messages shown to the reader differ from history in count and order. */
function differences(
  where: string,
  shown: readonly ObservedMessage[],
  stored: readonly ObservedMessage[],
): string[] {
  const faults: string[] = [];
  const count = new Map<number, number>();
  for (const { messageId } of shown) count.set(messageId, (count.get(messageId) ?? 0) + 1);
  for (const { messageId, messageSeq, clientMsgNo } of stored) {
    const times = count.get(messageId) ?? 0;
    if (times !== 1)
      faults.push(`${where}: ${clientMsgNo} with seq ${messageSeq} was shown ${times} times`);
  }
  for (const [at, message] of shown.entries()) {
    const before = shown[at - 1]?.messageSeq ?? 0;
    if (message.messageSeq < before)
      faults.push(`${where}: seq ${message.messageSeq} was shown after ${before}`);
  }
  return faults;
}
