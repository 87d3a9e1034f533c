// Publishes unordered events through Redis: each is sent once or, while Redis is away, not at all;
// nothing is queued for later. State: publications under way, batches of announcements.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { topicsOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { unorderedFrame } from "../../../redis/wire.ts";
import type { OnError } from "./topics-parts.ts";

/** Events of long announcements under way at most: they must not take every place of the link. */
const ANNOUNCED_AT_ONCE = 500;
/** A longer announcement goes out in batches of this size. */
const TURN = 50;
/** Limit of events in waiting batches. */
const MAX_WAITING = 100_000;

export class Publishing {
  readonly #link: RedisLink;
  readonly #onError: OnError;
  readonly #underWay = new Set<Promise<void>>();
  readonly #turns = new Semaphore(ANNOUNCED_AT_ONCE / TURN);
  /** Events in waiting batches. */
  #waiting = 0;

  constructor(link: RedisLink, onError: OnError) {
    this.#link = link;
    this.#onError = onError;
  }

  /** Does not wait; lost while Redis is away. */
  publish(event: ClusterEvent): void {
    for (const sent of this.#send(event))
      sent.catch((error) => this.#onError(error, "A publication could not be sent"));
  }

  /** See `Announcer`. Stops at the first failure. */
  async announce(events: readonly ClusterEvent[]): Promise<void> {
    if (events.length <= TURN) await this.#sendAll(events);
    else if (this.#waiting < MAX_WAITING) await this.#sendInTurns(events);
    else throw new BrokerError("overloaded");
  }

  /** Resolves when the publications under way are answered or failed. */
  async settled(): Promise<void> {
    await Promise.all(this.#underWay);
  }

  async #sendInTurns(events: readonly ClusterEvent[]): Promise<void> {
    let hasFailed = false;
    const turn = async (some: readonly ClusterEvent[]) => {
      this.#waiting -= some.length;
      if (hasFailed) return;
      try {
        await this.#sendAll(some);
      } catch (error) {
        hasFailed = true;
        throw error;
      }
    };
    this.#waiting += events.length;
    const turns: Promise<void>[] = [];
    for (let at = 0; at < events.length; at += TURN) {
      const some = events.slice(at, at + TURN);
      turns.push(this.#turns.run(() => turn(some)));
    }
    await Promise.all(turns);
  }

  async #sendAll(events: readonly ClusterEvent[]): Promise<void> {
    await Promise.all(events.flatMap((event) => this.#send(event)));
  }

  #send(event: ClusterEvent): readonly Promise<unknown>[] {
    const all: Promise<unknown>[] = [];
    for (const part of partsOf(event)) {
      const frame = unorderedFrame(randomUUID(), part); // one id on all topics
      for (const topic of topicsOf(part)) {
        const name = this.#link.keys.topic(topic);
        const sent = this.#link.call("spublish", name, frame);
        const over: Promise<void> = sent
          .then(ignore, ignore) // reported to the caller
          .finally(() => this.#underWay.delete(over));
        this.#underWay.add(over);
        all.push(sent);
      }
    }
    return all;
  }
}

/** The event, or one for each of several recipients: each gets only its own. */
function partsOf(event: ClusterEvent): readonly ClusterEvent[] {
  if (event.kind === "command") return event.copies.map((copy) => ({ ...event, copies: [copy] }));
  if (event.kind === "message" && event.recipients !== undefined)
    return event.recipients.map((uid) => ({ ...event, recipients: [uid] }));
  return [event];
}

function ignore(): void {}
