// What a fail-over cost, by what users can know: acknowledgements against history, and what readers
// were shown against history. A primary that dies may take with it what its replica did not have
// yet; here that is told apart from what may never be. Pure.

import type {
  Acknowledgement,
  ObservedMessage,
  ObservedRange,
  SentMessage,
} from "../support/history-checker.ts";

export interface Losses {
  /** Acknowledged and not in history. */
  readonly lost: readonly string[];
  /** Shown to somebody and not in history: what nobody acknowledged, or what was lost. */
  readonly takenBack: number;
  /**
   * What may never be: numbers twice in history, another order, a message that a reader was not
   * shown, or twice.
   */
  readonly wrong: readonly string[];
}

export interface Witnessed {
  readonly acks: readonly (SentMessage & Acknowledgement)[];
  readonly histories: ReadonlyMap<string, ObservedRange>;
  /** What each reader was shown of each channel, in order. */
  readonly shown: readonly {
    readonly name: string;
    readonly key: string;
    readonly messages: readonly ObservedMessage[];
  }[];
}

export function lossesOf({ acks, histories, shown }: Witnessed): Losses {
  const ids = new Set<number>();
  const wrong: string[] = [];
  for (const [key, { messages, throughSeq }] of histories) {
    wrong.push(...faultsOf(key, messages));
    if (messages.length !== throughSeq)
      wrong.push(`${key}: ${messages.length} messages, head ${throughSeq}`);
    for (const { messageId } of messages) ids.add(messageId);
  }
  const lost = acks.filter((ack) => !ack.noPersist && !ids.has(ack.messageId));
  let takenBack = 0;
  for (const { name, key, messages } of shown) {
    const stored = messages.filter(({ messageSeq }) => messageSeq > 0);
    const kept = stored.filter(({ messageId }) => ids.has(messageId));
    takenBack += stored.length - kept.length;
    const { messages: all = [] } = histories.get(key) ?? {};
    wrong.push(...differences(`${name} of ${key}`, kept, all));
  }
  return {
    lost: lost.map(
      ({ key, clientMsgNo, messageId }) => `${clientMsgNo} of ${key}, id ${messageId}`,
    ),
    takenBack,
    wrong,
  };
}

function faultsOf(key: string, messages: readonly ObservedMessage[]): string[] {
  const names = new Set<string>();
  const faults: string[] = [];
  let last = { messageId: 0, messageSeq: 0 };
  for (const one of messages) {
    const name = `${one.fromUid}/${one.clientMsgNo}`;
    if (names.has(name)) faults.push(`${key}: ${name} twice in history`);
    names.add(name);
    if (one.messageSeq !== last.messageSeq + 1 || one.messageId <= last.messageId)
      faults.push(`${key}: ${name} at ${one.messageSeq} after ${last.messageSeq}`);
    last = one;
  }
  return faults;
}

/** The reader was shown exactly this, in this order. */
function differences(
  where: string,
  shown: readonly ObservedMessage[],
  all: readonly ObservedMessage[],
): string[] {
  const faults: string[] = [];
  const count = new Map<number, number>();
  for (const { messageId } of shown) count.set(messageId, (count.get(messageId) ?? 0) + 1);
  for (const { messageId, messageSeq, clientMsgNo } of all) {
    const times = count.get(messageId) ?? 0;
    if (times !== 1) faults.push(`${where}: ${clientMsgNo} at ${messageSeq} shown ${times} times`);
  }
  for (const [at, one] of shown.entries()) {
    const before = shown[at - 1]?.messageSeq ?? 0;
    if (one.messageSeq < before) faults.push(`${where}: ${one.messageSeq} shown after ${before}`);
  }
  return faults;
}
