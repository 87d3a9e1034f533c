// The arrivals of one channel at this node: publications are told strictly in the order of their numbers, each once. One that comes before its turn
// is kept; when the missing one does not come in time, the line asks to be repaired from the store. State: how far it is, what is kept, who waits.

import type {
  ChannelKey,
  Message,
  StreamSnapshot,
} from "../../../broker/model.ts";
import { messageTimeMs, streamPayload } from "../../../broker/model.ts";
import {
  begun,
  decodeFrame,
  kindOf,
  MESSAGE_FRAME,
  messageIdOf,
  type OrderedEvent,
  pubOf,
  REMOVAL_FRAME,
} from "../../../redis/wire.ts";
import { isUnstored, type BufferedBytes, ReorderBuffer } from "./reorder-buffer.ts";
import { DeliveredPosition } from "./position.ts";
import type { TopicsMetrics } from "./topics-parts.ts";

export interface SequencerParts {
  /** How long a missing publication is waited for, milliseconds. */
  readonly gapMs: number;
  readonly budget: BufferedBytes;
  /** Unix milliseconds. */
  readonly clock: () => number;
  /** Takes an event to the node's listener; never throws. */
  readonly tell: (event: OrderedEvent) => void;
  readonly rejected: TopicsMetrics["rejected"];
  /** The line cannot go on by itself. */
  readonly onGap: (line: Sequencer) => void;
  readonly onProblem: (error: unknown, what: string) => void;
}

/** Ids begin with a node's clock: one that is ahead by more is looked up. */
const CLOCKS_APART_MS = 60_000;

interface Waiter {
  readonly pub: number;
  readonly sinceMs: number;
  readonly resolve: () => void;
}

export class Sequencer {
  readonly key: ChannelKey;
  /** Messages older than this are none of its business, Unix milliseconds. */
  readonly sinceMs: number;
  readonly told = new DeliveredPosition();
  readonly #parts: SequencerParts;
  /** `new`: it has no position yet. */
  #status: "new" | "level" | "gap" | "repaired" | "closed" = "new";
  /** What was published may not come: everything is kept until it was repaired. */
  #isSuspended = false;
  /** Everything through it has been told. */
  #pub = 0;
  #movedAtMs = 0;
  /** A publication with this number exists. */
  #expected = 0;
  /** What is kept through it came while the line was suspended. */
  #suspendedThrough = 0;
  #kept: ReorderBuffer | undefined;
  #waiters: Waiter[] | undefined;
  #gapTimer: NodeJS.Timeout | undefined;

  constructor(key: ChannelKey, sinceMs: number, parts: SequencerParts) {
    this.key = key;
    this.sinceMs = sinceMs;
    this.#parts = parts;
  }

  get isNew(): boolean {
    return this.#status === "new";
  }

  /** What comes next is told at once. */
  get isLevel(): boolean {
    return this.#status === "level" && !this.#isSuspended;
  }

  get isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Everything through this number has been told; 0 while it is new. */
  get pub(): number {
    return this.#pub;
  }

  /** When its position was found or moved last, Unix milliseconds; 0: nothing was ever published. */
  get movedAtMs(): number {
    return this.#movedAtMs;
  }

  get isSuspended(): boolean {
    return this.#isSuspended;
  }

  /** The numbers of what is kept. */
  get keptNumbers(): readonly number[] {
    return this.#kept?.numbers ?? [];
  }

  /** The lowest number among what is kept; Infinity: nothing is. */
  get lowestKept(): number {
    return this.#kept?.lowest ?? Number.POSITIVE_INFINITY;
  }

  /** Nobody needs it just now. */
  get isIdle(): boolean {
    const isQuiet = this.#status === "level" || this.#status === "closed";
    return isQuiet && this.#waiters === undefined;
  }

  /** A frame of the channel came; `event` where it is decoded already. */
  accept(frame: Buffer, event?: OrderedEvent): void {
    const pub = pubOf(frame);
    if (this.#isHeld) return this.#keep(pub, frame);
    if (pub === this.#pub + 1 && !this.#isDoubtful(frame)) {
      this.#advance(pub, frame, event);
      if (this.#status === "gap") this.#drain();
    } else if (pub === this.#pub + 1) {
      this.#keep(pub, frame);
      this.#parts.onGap(this); // the store says what stands there
    } else if (pub > this.#pub) {
      this.#keep(pub, frame);
      this.#openGap();
    } else if (this.#isOfAnotherPast(frame)) {
      this.#keep(pub, frame);
      this.#parts.onGap(this);
    } else if (kindOf(frame) === REMOVAL_FRAME) {
      this.#parts.onGap(this); // late, or its number was given out again: the store says who is a member
    }
  }

  /** It begins here: everything through `pub` is told or none of its business. */
  begin(pub: number, headSeq: number | undefined): void {
    this.told.headSeq ??= headSeq;
    this.settle(pub);
  }

  /** What is published may not reach the node from now on. */
  suspend(): void {
    this.#isSuspended = true;
  }

  /** It does again; what was missed is told by a repair that began before. */
  resume(): void {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    for (const pub of this.keptNumbers)
      if (pub > this.#suspendedThrough) this.#suspendedThrough = pub;
    if (!this.#isHeld) this.#drain();
  }

  /** Keeps everything until `settle`. False: it is closed. */
  startRepair(): boolean {
    if (this.#status === "closed") return false;
    this.#endGap();
    if (this.#status !== "new") this.#status = "repaired";
    return true;
  }

  /** Tells a stored message unless it was told; and, of a stream's, everything of the stream. Only while it is repaired. */
  tellMessage(message: Message): void {
    if (this.isClosed) return;
    const before = this.#kept?.unstoredBefore(message.messageId) ?? [];
    for (const frame of before)
      if (pubOf(frame) > this.#pub) this.#tellFrame(frame);
    const kept = this.#kept?.message(message.messageId);
    const event = kept === undefined ? undefined : this.#decode(kept); // knows who sent it
    this.#tell(event ?? published(message));
    if (message.stream !== undefined && this.told.knows(message.clientMsgNo))
      this.tellStream(message.stream);
  }

  /** Tells what is missing of a stream, merged. */
  tellStream(snapshot: StreamSnapshot): void {
    if (this.isClosed) return;
    for (const event of this.told.missed(snapshot))
      this.#parts.tell({ kind: "event", event });
  }

  /** These are kept, and the store has not come so far. */
  disprove(numbers: readonly number[]): void {
    for (const pub of numbers)
      if (this.#kept?.take(pub) !== undefined)
        this.#parts.rejected("disproved");
  }

  /** Everything through `pub` was told or cannot be had; goes on from there. */
  settle(pub: number): void {
    if (this.isClosed) return;
    const before = this.#status === "new" ? 0 : this.#pub;
    for (const frame of this.#kept?.passThrough(pub) ?? [])
      if (pubOf(frame) > before) this.#tellFrame(frame);
    this.#pub = pub;
    this.#expected = pub;
    if (pub > 0) this.#movedAtMs = this.#parts.clock();
    this.#status = "level";
    if (this.#isSuspended) this.#wake();
    else this.#drain();
  }

  /** What is missing cannot be read: tells what is kept and goes on behind it. */
  skip(): void {
    let pub = this.#pub;
    for (const frame of this.#kept?.takeAll() ?? []) {
      if (pubOf(frame) <= this.#pub && !this.#isOfAnotherPast(frame)) continue;
      this.#tellFrame(frame);
      pub = pubOf(frame);
    }
    this.settle(pub);
  }

  /** A publication with this number exists: it is waited for and, if need be, read. */
  expect(pub: number): void {
    if (pub <= this.#expected) return;
    this.#expected = pub;
    if (!this.#isHeld && pub > this.#pub) this.#openGap();
  }

  /** Resolves once everything through `pub` was told, or by `giveUp`. */
  wait(pub: number, nowMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.#waiters ??= [];
      this.#waiters.push({ pub, sinceMs: nowMs, resolve });
    });
  }

  /** Lets go who waits since then or longer. Returns since when the next one waits; undefined: nobody does. */
  giveUp(sinceMs: number): number | undefined {
    this.#release((waiter) => waiter.sinceMs <= sinceMs);
    return this.#waiters?.[0]?.sinceMs;
  }

  close(): void {
    this.#endGap();
    this.#status = "closed";
    this.#kept?.clear();
    this.#release(() => true);
  }

  get #isHeld(): boolean {
    return (
      this.#isSuspended || (this.#status !== "level" && this.#status !== "gap")
    );
  }

  /** After a fail-over numbers may come again: then they carry messages with ids that were never seen. The number told last has one message. */
  #isOfAnotherPast(frame: Buffer): boolean {
    const { lastId } = this.told;
    if (kindOf(frame) !== MESSAGE_FRAME || lastId === 0) return false;
    const messageId = messageIdOf(frame);
    if (messageId > lastId) return true;
    return pubOf(frame) === this.#pub && messageId < lastId;
  }

  /** An id that was given out before the last one, or will be later, is not the next message's. */
  #isDoubtful(frame: Buffer): boolean {
    if (kindOf(frame) !== MESSAGE_FRAME) return false;
    const messageId = messageIdOf(frame);
    const isOld = messageId <= this.told.lastId;
    return isOld || messageTimeMs(messageId) > Date.now() + CLOCKS_APART_MS;
  }

  #keep(pub: number, frame: Buffer): void {
    if (this.isClosed) return;
    this.#kept ??= new ReorderBuffer(this.#parts.budget);
    this.#kept.keep(pub, frame);
    this.expect(pub); // also where the frame itself is given up
  }

  #drain(): void {
    const kept = this.#kept;
    while (kept !== undefined && kept.size > 0 && !this.#isHeld) {
      const frame = kept.take(this.#pub + 1);
      if (frame === undefined) break;
      this.#advance(this.#pub + 1, frame, undefined);
    }
    this.#wake();
    if (this.#isHeld) return; // a removal is judged first
    if ((kept?.size ?? 0) > 0 || this.#expected > this.#pub) this.#openGap();
    else this.#endGap();
    if (kept?.hasLost()) this.#parts.onGap(this); // the store has what was given up
  }

  #advance(pub: number, frame: Buffer, event: OrderedEvent | undefined): void {
    this.#pub = pub;
    this.#movedAtMs = this.#parts.clock();
    if (event === undefined) this.#tellFrame(frame);
    else this.#tell(event);
    if (this.#waiters !== undefined) this.#wake();
  }

  /** What no store has and came while the line was suspended is left out: sessions that began since may have had it at another node. */
  #tellFrame(frame: Buffer): void {
    const wasHeld = pubOf(frame) <= this.#suspendedThrough;
    if (wasHeld && isUnstored(frame)) return;
    const event = this.#decode(frame);
    if (event !== undefined) this.#tell(event);
  }

  #tell(event: OrderedEvent): void {
    if (event.kind === "removal" && event.uids === undefined)
      this.#parts.onGap(this); // the store says of whom, before anything more is told
    else if (this.told.takes(event)) this.#parts.tell(event);
  }

  #decode(frame: Buffer): OrderedEvent | undefined {
    try {
      const publication = decodeFrame(frame);
      return publication.kind === "ordered" ? publication.event : undefined;
    } catch (error) {
      this.#parts.onProblem(error, "A publication could not be read");
      return undefined;
    }
  }

  #openGap(): void {
    this.#status = "gap";
    this.#gapTimer ??= setTimeout(() => {
      this.#gapTimer = undefined;
      if (this.#status === "gap") this.#parts.onGap(this);
    }, this.#parts.gapMs);
  }

  #endGap(): void {
    clearTimeout(this.#gapTimer);
    this.#gapTimer = undefined;
    if (this.#status === "gap") this.#status = "level";
  }

  #wake(): void {
    this.#release(({ pub }) => pub <= this.#pub);
  }

  #release(isOver: (waiter: Waiter) => boolean): void {
    const waiters = this.#waiters;
    if (waiters === undefined) return;
    const left = waiters.filter((waiter) => !isOver(waiter));
    this.#waiters = left.length === 0 ? undefined : left;
    for (const waiter of waiters) if (isOver(waiter)) waiter.resolve();
  }
}

/** A stored message as it was published: of a stream, with nothing of it yet. */
function published(message: Message): OrderedEvent {
  const told = { kind: "message", origin: undefined } as const;
  const { stream } = message;
  if (stream === undefined) return { ...told, message, recipients: undefined };
  const plain = { ...message, payload: streamPayload("") };
  return {
    ...told,
    message: { ...plain, stream: begun(plain, stream.startData) },
    recipients: undefined,
  };
}
