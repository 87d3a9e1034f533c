// Publishes unordered events through Redis. An event is sent at most once, and is dropped if Redis
// cannot be reached. `publish` keeps no event beyond the current turn of the event loop. The events
// of a large announcement are queued, and sent in batches.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { topicsOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { batchOf, unorderedFrame } from "../../../redis/wire.ts";
import type { OnError } from "./topics-ports.ts";

/**
 * Maximum number of events in flight from announcements of more than `BATCH_SIZE` events. The limit
 * leaves link capacity for other calls.
 */
const MAX_ANNOUNCING = 500;
const BATCH_SIZE = 50;
const MAX_QUEUED = 100_000;
/** Size in bytes above which a topic's frames are sent before the turn ends. */
const MAX_BATCH_BYTES = 65_536;

interface TopicBatch {
  frames: Buffer[];
  bytes: number;
}

export class Publishing {
  readonly #link: RedisLink;
  readonly #onError: OnError;
  readonly #pending = new Set<Promise<void>>();
  readonly #batches = new Semaphore(MAX_ANNOUNCING / BATCH_SIZE);
  /** Frames published in this turn of the event loop. */
  readonly #batchesByTopic = new Map<Topic, TopicBatch>();
  #queued = 0;

  constructor(link: RedisLink, onError: OnError) {
    this.#link = link;
    this.#onError = onError;
  }

  /**
   * Sends the event at the end of this turn, together with the other events of its topic. The event
   * is lost if Redis cannot be reached.
   */
  publish(event: ClusterEvent): void {
    for (const [topic, frame] of framesOf(event)) {
      if (this.#batchesByTopic.size === 0) setImmediate(() => this.#sendBatches());
      const batch = this.#batchesByTopic.get(topic) ?? { frames: [], bytes: 0 };
      batch.frames.push(frame);
      batch.bytes += frame.length;
      this.#batchesByTopic.set(topic, batch);
      if (batch.bytes > MAX_BATCH_BYTES) this.#sendBatch(topic, batch);
    }
  }

  /**
   * Implements `Announcer`. Stops after a batch has failed. Rejects an announcement of more than
   * `BATCH_SIZE` events with `overloaded` if at least `MAX_QUEUED` events are queued.
   */
  async announce(events: readonly ClusterEvent[]): Promise<void> {
    if (events.length <= BATCH_SIZE) await this.#sendAll(events);
    else if (this.#queued < MAX_QUEUED) await this.#sendInBatches(events);
    else throw new BrokerError("overloaded");
  }

  /** Resolves when all events that were published before the call have been sent or have failed. */
  async settled(): Promise<void> {
    this.#sendBatches();
    await Promise.all(this.#pending);
  }

  async #sendInBatches(events: readonly ClusterEvent[]): Promise<void> {
    let hasFailed = false;
    const sendBatch = async (batch: readonly ClusterEvent[]) => {
      this.#queued -= batch.length;
      if (hasFailed) return;
      try {
        await this.#sendAll(batch);
      } catch (error) {
        hasFailed = true;
        throw error;
      }
    };
    this.#queued += events.length;
    const batches: Promise<void>[] = [];
    for (let at = 0; at < events.length; at += BATCH_SIZE) {
      const batch = events.slice(at, at + BATCH_SIZE);
      batches.push(this.#batches.run(() => sendBatch(batch)));
    }
    await Promise.all(batches);
  }

  async #sendAll(events: readonly ClusterEvent[]): Promise<void> {
    await Promise.all(events.flatMap(framesOf).map(([topic, frame]) => this.#send(topic, frame)));
  }

  #sendBatches(): void {
    for (const [topic, batch] of this.#batchesByTopic) this.#sendBatch(topic, batch);
    this.#batchesByTopic.clear();
  }

  #sendBatch(topic: Topic, batch: TopicBatch): void {
    const { frames } = batch;
    batch.frames = [];
    batch.bytes = 0;
    const [first] = frames;
    if (first === undefined) return;
    this.#send(topic, frames.length === 1 ? first : batchOf(frames)).catch((error) =>
      this.#onError(error, "Could not publish events; other nodes do not receive them"),
    );
  }

  #send(topic: Topic, publication: Buffer): Promise<unknown> {
    const sent = this.#link.call("spublish", this.#link.keys.topic(topic), publication);
    const settled: Promise<void> = sent
      .then(ignore, ignore) // the caller handles the error
      .finally(() => this.#pending.delete(settled));
    this.#pending.add(settled);
    return sent;
  }
}

/** Returns an event's frames, each with the topic on which it is published. */
function framesOf(event: ClusterEvent): readonly (readonly [Topic, Buffer])[] {
  return eventsPerRecipient(event).flatMap((single) => {
    // The id is the same on all topics, so that a node delivers the event once.
    const frame = unorderedFrame(randomUUID(), single);
    return topicsOf(single).map((topic) => [topic, frame] as const);
  });
}

function eventsPerRecipient(event: ClusterEvent): readonly ClusterEvent[] {
  if (event.kind === "command") return event.copies.map((copy) => ({ ...event, copies: [copy] }));
  if (event.kind === "message" && event.recipients !== undefined)
    return event.recipients.map((uid) => ({ ...event, recipients: [uid] }));
  return [event];
}

function ignore(): void {}
