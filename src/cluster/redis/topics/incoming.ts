// Routes received frames. Ordered frames go to their channel's sequencer. Unordered frames go to
// the listener, each of them only once. Frames that are unreadable or on the wrong topic are
// counted, reported and dropped.

import type { ClusterEvent } from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import {
  decodeFrame,
  framesOf,
  framesOfBatch,
  isMessages,
  isUnorderedBatch,
} from "../../../redis/wire.ts";
import type { Channels } from "./channels.ts";
import { isOrderedUnder, isUnordered } from "./event-check.ts";
import type { Subscription } from "./subscription.ts";
import type { Deliver, OnError, TopicsMetrics } from "./topics-ports.ts";

interface IncomingPorts {
  readonly topic: (name: string) => Subscription | undefined;
  readonly channels: Pick<Channels, "accept">;
  readonly deliver: Deliver;
  readonly rejected: TopicsMetrics["rejected"];
  readonly onError: OnError;
}

const RECENT_IDS = 8192;
const MAX_HELD_CHANGES = 1000;
/** Kinds of events that contain other users' content. Only users with access may receive them. */
const VISIBLE_KINDS: ReadonlySet<ClusterEvent["kind"]> = new Set<ClusterEvent["kind"]>([
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
  readonly #ports: IncomingPorts;
  readonly #recentIds = new RecentIds(RECENT_IDS);
  readonly #heldChanges = new BoundedMap<
    string,
    { readonly topic: Subscription; readonly event: ConversationEvent }
  >(MAX_HELD_CHANGES);
  #lastPersonal: Buffer = NOTHING;

  constructor(ports: IncomingPorts) {
    this.#ports = ports;
  }

  accept(name: string, frame: Buffer): void {
    const topic = this.#ports.topic(name);
    if (topic === undefined) return; // unsubscribed before the frame arrived
    if (isMessages(frame)) this.#acceptMessages(topic, frame);
    else if (isUnorderedBatch(frame)) this.#acceptBatch(topic, frame);
    else this.#acceptFrame(topic, frame);
  }

  deliverHeld(): void {
    for (const [name, { topic, event }] of this.#heldChanges) {
      if (topic.isOpen && isHeld(topic)) continue;
      this.#heldChanges.delete(name);
      if (topic.isOpen) this.#ports.deliver(event);
    }
  }

  #acceptBatch(topic: Subscription, batch: Buffer): void {
    const { frames, isWhole } = framesOfBatch(batch);
    for (const frame of frames) this.#acceptFrame(topic, frame);
    if (!isWhole || frames.length === 0)
      this.#dropUnreadable(new Error("the publication is not a complete list of frames"));
  }

  #acceptMessages(topic: Subscription, batch: Buffer): void {
    const isPersonal = topic.sequencer === undefined;
    // The batch may already have arrived on the topic of the personal channel's other user.
    if (isPersonal && this.#lastPersonal.equals(batch)) return;
    const { frames, isWhole } = framesOf(batch);
    for (const frame of frames) this.#acceptFrame(topic, frame);
    if (isPersonal) this.#lastPersonal = batch;
    if (!isWhole || frames.length === 0)
      this.#dropUnreadable(new Error("the publication is not a complete list of message frames"));
  }

  #acceptFrame(topic: Subscription, frame: Buffer): void {
    try {
      this.#route(topic, frame);
    } catch (error) {
      this.#dropUnreadable(error);
    }
  }

  #dropUnreadable(error: unknown): void {
    this.#ports.rejected("unreadable");
    this.#ports.onError(
      error,
      "Dropped a publication that this node cannot read; check that all nodes run the same version",
    );
  }

  #route(topic: Subscription, frame: Buffer): void {
    // If both users of a personal channel are on this node, its frames arrive twice, usually in
    // direct succession.
    if (topic.sequencer === undefined && this.#lastPersonal.equals(frame)) return;
    const publication = decodeFrame(frame);
    if (publication.kind === "mark") return this.#dropMisplaced();
    if (publication.kind === "log") {
      const { event } = publication;
      // Readers compare offsets, so an event may be delivered while the topic is being restored.
      return isUnordered(event, topic.topic) ? this.#ports.deliver(event) : this.#dropMisplaced();
    }
    if (publication.kind === "unordered") {
      const { event } = publication;
      if (!isUnordered(event, topic.topic)) return this.#dropMisplaced();
      if (isHeld(topic) && VISIBLE_KINDS.has(event.kind)) return this.#holdBack(topic, event);
      if (this.#recentIds.add(publication.id)) this.#ports.deliver(event);
      return;
    }
    if (!isOrderedUnder(publication.event, topic.topic)) return this.#dropMisplaced();
    if (topic.sequencer !== undefined) return topic.sequencer.accept(frame, publication.event);
    if (publication.event.kind === "removal") return this.#dropMisplaced();
    this.#lastPersonal = frame;
    this.#ports.channels.accept(frame, publication.publicationSeq, publication.event);
  }

  /**
   * Holds a conversation change until access is checked. Drops every other event, because events
   * that must not be lost are also in the store.
   */
  #holdBack(topic: Subscription, event: ClusterEvent): void {
    if (event.kind !== "conversation") return;
    const { id, type } = event.conversation.channel;
    const name = `${topic.name} ${type}:${id}`;
    // Moves the change to the end, so that the changes of one topic are delivered in order of
    // arrival.
    this.#heldChanges.renew(name, { topic, event });
  }

  #dropMisplaced(): void {
    this.#ports.rejected("misplaced");
    const error = new Error("the event does not belong to the topic");
    this.#ports.onError(
      error,
      "Dropped a publication on the wrong topic; only Jindou may publish on its topics",
    );
  }
}

/** Set of recent ids. Contains at least the last `max` ids, and at most twice that number. */
class RecentIds {
  readonly #max: number;
  #newer = new Set<string>();
  #older = new Set<string>();

  constructor(max: number) {
    this.#max = max;
  }

  add(id: string): boolean {
    if (this.#newer.has(id) || this.#older.has(id)) return false;
    this.#newer.add(id);
    if (this.#newer.size < this.#max) return true;
    this.#older = this.#newer;
    this.#newer = new Set();
    return true;
  }
}
