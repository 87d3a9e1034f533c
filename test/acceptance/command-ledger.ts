// Checks command inboxes from what users can see: the commands sent to each user, the commands each
// device was shown and acknowledged, and the number of acknowledgements the server counted. Keeps
// these records per user, and a list of the problems found. Never calls the broker.

import type { Message } from "../../src/broker/model.ts";

/**
 * One connection of a device. A command acknowledged before the connection began must not be pushed
 * to it.
 */
export interface DeviceConnection {
  readonly device: string;
  readonly uid: string;
  /** Time of the ledger's own clock at which the connection began. */
  readonly beganAt: number;
  /** Inbox seq of the newest command that was shown. */
  lastSeq: number;
}

interface Inbox {
  /** `clientMsgNo` of each command sent to the user. */
  readonly expected: Set<string>;
  readonly bySeq: Map<number, string>;
  readonly seqOf: Map<string, number>;
  /** Time and device of each acknowledgement whose reply arrived, by inbox seq. */
  readonly acknowledged: Map<number, { at: number; device: string }>;
  /** Acknowledged inbox seqs whose reply was lost. The server may have counted them. */
  readonly withoutReply: Set<number>;
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

  /**
   * Records a command that is about to be sent. `call` is whatever the caller needs to send the
   * command again.
   */
  sent(no: string, recipients: readonly string[], call: unknown): void {
    for (const uid of recipients) this.#inbox(uid).expected.add(no);
    if (!this.#messageIds.has(no)) this.#unanswered.set(no, call);
  }

  answered(no: string, messageId: number, messageSeq: number): void {
    this.#unanswered.delete(no);
    const firstId = this.#messageIds.get(no) ?? messageId;
    this.#messageIds.set(no, firstId);
    if (firstId !== messageId) this.#problem(`${no} has the ids ${firstId} and ${messageId}`);
    if (messageSeq !== 0) this.#problem(`${no} has seq ${messageSeq} instead of 0`);
  }

  /** Returns the calls that must be repeated, because they were not answered. */
  get unanswered(): readonly unknown[] {
    return [...this.#unanswered.values()];
  }

  /** Records that a device connects. */
  beginConnection(device: string, uid: string): DeviceConnection {
    this.#clock += 1;
    return { device, uid, beganAt: this.#clock, lastSeq: 0 };
  }

  /** Records that a device was shown a command. */
  shown(connection: DeviceConnection, inboxSeq: number, message: Message): void {
    const { uid, device } = connection;
    const inbox = this.#inbox(uid);
    const no = message.clientMsgNo;
    const copy = `${device}: ${no} with inbox seq ${inboxSeq}`;
    if (!inbox.expected.has(no)) this.#problem(`${copy} was not sent to ${uid}`);
    if (inboxSeq <= connection.lastSeq)
      this.#problem(`${copy} was shown after ${connection.lastSeq}`);
    connection.lastSeq = inboxSeq;
    if ((inbox.bySeq.get(inboxSeq) ?? no) !== no)
      this.#problem(`${copy} has the inbox seq of ${inbox.bySeq.get(inboxSeq)}`);
    if ((inbox.seqOf.get(no) ?? inboxSeq) !== inboxSeq)
      this.#problem(`${copy} was also shown with inbox seq ${inbox.seqOf.get(no)}`);
    inbox.bySeq.set(inboxSeq, no);
    inbox.seqOf.set(no, inboxSeq);
    if ((this.#messageIds.get(no) ?? message.messageId) !== message.messageId)
      this.#problem(`${copy} has a different message id`);
    if (!new TextDecoder().decode(message.payload).includes(`"${no}"`))
      this.#problem(`${copy} has a different payload`);
    const acknowledgement = inbox.acknowledged.get(inboxSeq);
    if (
      acknowledgement &&
      (acknowledgement.device === device || acknowledgement.at < connection.beganAt)
    )
      this.#problem(`${copy} was shown again after its acknowledgement`);
  }

  /** Records that the reply to an acknowledgement was lost. */
  replyLost(uid: string, inboxSeqs: readonly number[]): void {
    for (const seq of inboxSeqs) this.#inbox(uid).withoutReply.add(seq);
  }

  acknowledged(
    { uid, device }: DeviceConnection,
    inboxSeqs: readonly number[],
    count: number,
  ): void {
    const inbox = this.#inbox(uid);
    inbox.counted += count;
    this.#clock += 1;
    const reply = { at: this.#clock, device };
    for (const seq of inboxSeqs) inbox.acknowledged.set(seq, reply);
  }

  /** Returns true if every command sent to the user was shown to one of the user's devices. */
  hasAll(uid: string): boolean {
    const { expected, seqOf } = this.#inbox(uid);
    return seqOf.size === expected.size;
  }

  /** Returns true if the server replied to an acknowledgement of the command. */
  isAcknowledged(uid: string, no: string): boolean {
    const { seqOf, acknowledged } = this.#inbox(uid);
    return acknowledged.has(seqOf.get(no) ?? 0);
  }

  /**
   * Checks that every command was shown and acknowledged, and that the server counted each command
   * once.
   */
  check(uid: string): void {
    const { expected, seqOf, acknowledged, counted, withoutReply } = this.#inbox(uid);
    for (const no of expected) if (!seqOf.has(no)) this.#problem(`${uid} was not shown ${no}`);
    for (const seq of seqOf.values())
      if (!acknowledged.has(seq) && !withoutReply.has(seq))
        this.#problem(`${uid} has not acknowledged inbox seq ${seq}`);
    const total = expected.size;
    if (counted > total || counted < total - withoutReply.size)
      this.#problem(
        `${uid}: the server counted ${counted} of ${total} commands, and ${withoutReply.size} acknowledgements had no reply`,
      );
  }

  #inbox(uid: string): Inbox {
    const inbox = this.#inboxes.get(uid) ?? {
      expected: new Set(),
      bySeq: new Map(),
      seqOf: new Map(),
      acknowledged: new Map(),
      withoutReply: new Set(),
      counted: 0,
    };
    this.#inboxes.set(uid, inbox);
    return inbox;
  }

  #problem(problem: string): void {
    this.problems.push(problem);
  }
}
