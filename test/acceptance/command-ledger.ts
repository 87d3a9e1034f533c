// Judges command inboxes by what users can know: which commands were sent to whom, what each device
// was shown, what it acknowledged and what the server counted. State: all of that per user, and the
// problems found. It never asks the broker anything.

import type { Message } from "../../src/broker/model.ts";

/** One connection of a device: what was acknowledged before it began must not come to it. */
export interface Sitting {
  readonly device: string;
  readonly uid: string;
  readonly began: number;
  /** The newest inboxSeq it was shown. */
  lastSeq: number;
}

interface Inbox {
  /** Commands sent to the user, by clientMsgNo. */
  readonly expected: Set<string>;
  readonly bySeq: Map<number, string>;
  readonly seqOf: Map<string, number>;
  /** When the reply to an acknowledgement came, and to which device, by inboxSeq. */
  readonly acknowledged: Map<number, { at: number; device: string }>;
  /** Were in an acknowledgement whose reply nobody heard: the server may have counted them. */
  readonly unheard: Set<number>;
  counted: number;
}

export class CommandLedger {
  readonly problems: string[] = [];
  readonly #inboxes = new Map<string, Inbox>();
  readonly #unanswered = new Map<string, unknown>();
  readonly #messageIds = new Map<string, number>();
  #clock = 0;

  get sentCount(): number {
    return this.#messageIds.size;
  }

  /** A command is about to be sent; `call` is what sends it again. */
  sent(no: string, recipients: readonly string[], call: unknown): void {
    for (const uid of recipients) this.#inbox(uid).expected.add(no);
    if (!this.#messageIds.has(no)) this.#unanswered.set(no, call);
  }

  answered(no: string, messageId: number, messageSeq: number): void {
    this.#unanswered.delete(no);
    const first = this.#messageIds.get(no) ?? messageId;
    this.#messageIds.set(no, first);
    if (first !== messageId) this.#problem(`${no} has ids ${first}, ${messageId}`);
    if (messageSeq !== 0) this.#problem(`${no} has seq ${messageSeq}`);
  }

  /** What has to be sent again. */
  get unanswered(): readonly unknown[] {
    return [...this.#unanswered.values()];
  }

  sit(device: string, uid: string): Sitting {
    this.#clock += 1;
    return { device, uid, began: this.#clock, lastSeq: 0 };
  }

  /** A device is shown a copy. */
  shown(sitting: Sitting, inboxSeq: number, message: Message): void {
    const { uid, device } = sitting;
    const inbox = this.#inbox(uid);
    const no = message.clientMsgNo;
    const what = `${device}: ${no} at ${inboxSeq}`;
    if (!inbox.expected.has(no)) this.#problem(`${what} was not for ${uid}`);
    if (inboxSeq <= sitting.lastSeq) this.#problem(`${what} after ${sitting.lastSeq}`);
    sitting.lastSeq = inboxSeq;
    if ((inbox.bySeq.get(inboxSeq) ?? no) !== no)
      this.#problem(`${what} was ${inbox.bySeq.get(inboxSeq)}`);
    if ((inbox.seqOf.get(no) ?? inboxSeq) !== inboxSeq)
      this.#problem(`${what} was at ${inbox.seqOf.get(no)}, too`);
    inbox.bySeq.set(inboxSeq, no);
    inbox.seqOf.set(no, inboxSeq);
    if ((this.#messageIds.get(no) ?? message.messageId) !== message.messageId)
      this.#problem(`${what} has another id`);
    if (!new TextDecoder().decode(message.payload).includes(`"${no}"`))
      this.#problem(`${what} has another content`);
    const done = inbox.acknowledged.get(inboxSeq);
    if (done && (done.device === device || done.at < sitting.began))
      this.#problem(`${what} came again after its acknowledgement`);
  }

  /** The reply to an acknowledgement was lost. */
  unheard(uid: string, inboxSeqs: readonly number[]): void {
    for (const seq of inboxSeqs) this.#inbox(uid).unheard.add(seq);
  }

  acknowledged({ uid, device }: Sitting, inboxSeqs: readonly number[], count: number): void {
    const inbox = this.#inbox(uid);
    inbox.counted += count;
    this.#clock += 1;
    const reply = { at: this.#clock, device };
    for (const seq of inboxSeqs) inbox.acknowledged.set(seq, reply);
  }

  /** Every command sent to the user was shown to a device of it. */
  hasAll(uid: string): boolean {
    const { expected, seqOf } = this.#inbox(uid);
    return seqOf.size === expected.size;
  }

  /** The server answered the acknowledgement of a command. */
  isAcknowledged(uid: string, no: string): boolean {
    const { seqOf, acknowledged } = this.#inbox(uid);
    return acknowledged.has(seqOf.get(no) ?? 0);
  }

  /** Nothing is left to be shown or acknowledged, and the server counted each command once. */
  judge(uid: string): void {
    const { expected, seqOf, acknowledged, counted, unheard } = this.#inbox(uid);
    for (const no of expected) if (!seqOf.has(no)) this.#problem(`${uid} never got ${no}`);
    for (const seq of seqOf.values())
      if (!acknowledged.has(seq) && !unheard.has(seq)) this.#problem(`${uid} has ${seq} left`);
    const most = expected.size;
    if (counted > most || counted < most - unheard.size)
      this.#problem(`${uid}: the server counted ${counted} of ${most}, ${unheard.size} unheard`);
  }

  #inbox(uid: string): Inbox {
    const found = this.#inboxes.get(uid) ?? {
      expected: new Set(),
      bySeq: new Map(),
      seqOf: new Map(),
      acknowledged: new Map(),
      unheard: new Set(),
      counted: 0,
    };
    this.#inboxes.set(uid, found);
    return found;
  }

  #problem(what: string): void {
    this.problems.push(what);
  }
}
