// Routes incoming frames: ordered ones to the channel's sequencer, unordered ones to the listener,
// once. Unreadable and misplaced frames are counted, reported and dropped. State: recent ids, the
// last personal frame, conversation changes held until their user is judged.

import type { ClusterEvent } from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { decodeFrame, framesOf, isMessages } from "../../../redis/wire.ts";
import type { Channels } from "./channels.ts";
import { isOrderedUnder, isUnordered } from "./event-check.ts";
import type { Subscription } from "./subscription.ts";
import type { Deliver, OnError, TopicsMetrics } from "./topics-parts.ts";

interface IncomingParts {
  readonly topic: (name: string) => Subscription | undefined;
  readonly channels: Pick<Channels, "accept">;
  readonly deliver: Deliver;
  readonly rejected: TopicsMetrics["rejected"];
  readonly onError: OnError;
}

const RECENT_IDS = 8192;
/** Of all users; beyond it the oldest are lost. */
const MAX_HELD = 1000;
/** Events that show users what others did. */
const SHOWN: ReadonlySet<ClusterEvent["kind"]> = new Set<ClusterEvent["kind"]>([
  "message",
  "event",
  "command",
  "conversation",
]);
const NOTHING = Buffer.alloc(0);

type ConversationEvent = Extract<ClusterEvent, { readonly kind: "conversation" }>;

function isHeld({ lostAtMs, sequencer }: Subscription): boolean {
  return lostAtMs !== undefined || sequencer?.isLive === false;
}

export class Incoming {
  readonly #parts: IncomingParts;
  readonly #recent = new RecentIds(RECENT_IDS);
  /** The newest change of each conversation, by topic and channel. */
  readonly #held = new BoundedMap<
    string,
    { readonly topic: Subscription; readonly event: ConversationEvent }
  >(MAX_HELD);
  #lastPersonal: Buffer = NOTHING;

  constructor(parts: IncomingParts) {
    this.#parts = parts;
  }

  /** Takes a frame of the named topic; never throws. */
  accept(name: string, frame: Buffer): void {
    const topic = this.#parts.topic(name);
    if (topic === undefined) return; // unsubscribed meanwhile
    if (isMessages(frame)) this.#acceptBatch(topic, frame);
    else this.#acceptOne(topic, frame);
  }

  /** Tells what was held of topics that are whole again. */
  tellHeld(): void {
    for (const [name, { topic, event }] of this.#held) {
      if (topic.isOpen && isHeld(topic)) continue;
      this.#held.delete(name);
      if (topic.isOpen) this.#parts.deliver(event);
    }
  }

  /** An unreadable frame does not affect the others. */
  #acceptBatch(topic: Subscription, batch: Buffer): void {
    const isPersonal = topic.sequencer === undefined;
    if (isPersonal && this.#lastPersonal.equals(batch)) return; // the same batch on the other user's topic
    const { frames, isWhole } = framesOf(batch);
    for (const frame of frames) this.#acceptOne(topic, frame);
    if (isPersonal) this.#lastPersonal = batch;
    if (!isWhole || frames.length === 0) this.#unreadable(new Error("frames are cut off"));
  }

  #acceptOne(topic: Subscription, frame: Buffer): void {
    try {
      this.#accept(topic, frame);
    } catch (error) {
      this.#unreadable(error);
    }
  }

  #unreadable(error: unknown): void {
    this.#parts.rejected("unreadable");
    this.#parts.onError(error, "An unreadable publication was dropped");
  }

  #accept(topic: Subscription, frame: Buffer): void {
    // With both users on this node a personal frame arrives twice, mostly in a row.
    if (topic.sequencer === undefined && this.#lastPersonal.equals(frame)) return;
    const publication = decodeFrame(frame);
    if (publication.kind === "mark") return this.#misplaced();
    const { event } = publication;
    if (publication.kind === "unordered") {
      if (!isUnordered(event, topic.topic)) return this.#misplaced();
      if (isHeld(topic) && SHOWN.has(event.kind)) return this.#holdBack(topic, event);
      if (this.#recent.isNew(publication.id)) this.#parts.deliver(event);
      return;
    }
    if (!isOrderedUnder(publication.event, topic.topic)) return this.#misplaced();
    if (topic.sequencer !== undefined) return topic.sequencer.accept(frame, publication.event);
    if (publication.event.kind === "removal") return this.#misplaced();
    this.#lastPersonal = frame;
    this.#parts.channels.accept(frame, publication.publicationSeq, publication.event);
  }

  /**
   * Access is not judged yet. Stored messages and commands are read later; conversation changes are
   * held.
   */
  #holdBack(topic: Subscription, event: ClusterEvent): void {
    if (event.kind !== "conversation") return;
    const { id, type } = event.conversation.channel;
    const name = `${topic.name} ${type}:${id}`;
    this.#held.renew(name, { topic, event }); // the newest is delivered last and dropped last
  }

  #misplaced(): void {
    this.#parts.rejected("misplaced");
    const error = new Error("it is no event of the topic");
    this.#parts.onError(error, "A publication that does not belong to its topic was dropped");
  }
}

/** Recent ids: at least the last `max`, at most twice as many. */
class RecentIds {
  readonly #max: number;
  #young = new Set<string>();
  #old = new Set<string>();

  constructor(max: number) {
    this.#max = max;
  }

  /** Remembers the id; false if it is known already. */
  isNew(id: string): boolean {
    if (this.#young.has(id) || this.#old.has(id)) return false;
    this.#young.add(id);
    if (this.#young.size < this.#max) return true;
    this.#old = this.#young;
    this.#young = new Set();
    return true;
  }
}
