// Publishes unordered events through Redis. Each event is sent at most once, and not at all while
// Redis cannot be reached; no event is kept for later.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { topicsOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { unorderedFrame } from "../../../redis/wire.ts";
import type { OnError } from "./topics-ports.ts";

/** Maximum number of events in flight from long announcements, so that other calls have room. */
const MAX_ANNOUNCING = 500;
const BATCH_SIZE = 50;
const MAX_QUEUED = 100_000;

export class Publishing {
  readonly #link: RedisLink;
  readonly #onError: OnError;
  readonly #pending = new Set<Promise<void>>();
  readonly #batches = new Semaphore(MAX_ANNOUNCING / BATCH_SIZE);
  #queued = 0;

  constructor(link: RedisLink, onError: OnError) {
    this.#link = link;
    this.#onError = onError;
  }

  /** Sends the event without waiting for a reply. The event is lost if Redis cannot be reached. */
  publish(event: ClusterEvent): void {
    for (const publication of this.#send(event))
      publication.catch((error) => this.#onError(error, "Could not send a publication"));
  }

  /**
   * Implements `Announcer`. Stops after a failed batch. Rejects a long announcement with
   * `overloaded` if at least `MAX_QUEUED` events are queued.
   */
  async announce(events: readonly ClusterEvent[]): Promise<void> {
    if (events.length <= BATCH_SIZE) await this.#sendAll(events);
    else if (this.#queued < MAX_QUEUED) await this.#sendInBatches(events);
    else throw new BrokerError("overloaded");
  }

  async settled(): Promise<void> {
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
    await Promise.all(events.flatMap((event) => this.#send(event)));
  }

  #send(event: ClusterEvent): readonly Promise<unknown>[] {
    const publications: Promise<unknown>[] = [];
    for (const single of eventsPerRecipient(event)) {
      // The id is the same on all topics, so that a node delivers the event once.
      const frame = unorderedFrame(randomUUID(), single);
      for (const topic of topicsOf(single)) {
        const name = this.#link.keys.topic(topic);
        const publication = this.#link.call("spublish", name, frame);
        const settled: Promise<void> = publication
          .then(ignore, ignore) // the caller handles the error
          .finally(() => this.#pending.delete(settled));
        this.#pending.add(settled);
        publications.push(publication);
      }
    }
    return publications;
  }
}

function eventsPerRecipient(event: ClusterEvent): readonly ClusterEvent[] {
  if (event.kind === "command") return event.copies.map((copy) => ({ ...event, copies: [copy] }));
  if (event.kind === "message" && event.recipients !== undefined)
    return event.recipients.map((uid) => ({ ...event, recipients: [uid] }));
  return [event];
}

function ignore(): void {}
