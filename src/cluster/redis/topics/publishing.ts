// What a node says to others out of turn, through Redis: heard by whoever listens, once or, when it cannot be sent, not at all. State: what is on
// its way, and the turns of what is announced. Never keeps anything to send it later.

import { BrokerError } from "../../../broker/errors.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { Line } from "../../../lib/line.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { UnorderedFrames } from "./unordered.ts";
import type { OnProblem } from "./topics-parts.ts";

/** Of long announcements so many wait for Redis' answer at most: a group of ten thousand must not take every place of the link. */
const ANNOUNCED_AT_ONCE = 500;
/** A longer announcement goes out in turns, behind others of its kind. */
const TURN = 50;
/** With so many events waiting for their turn no further long announcement is taken. */
const MAX_WAITING = 100_000;

export class Publishing {
  readonly #link: RedisLink;
  readonly #onProblem: OnProblem;
  readonly #frames = new UnorderedFrames();
  readonly #underWay = new Set<Promise<void>>();
  readonly #turns = new Line(ANNOUNCED_AT_ONCE / TURN);
  /** Announced in turns, and not sent yet. */
  #waiting = 0;

  constructor(link: RedisLink, onProblem: OnProblem) {
    this.#link = link;
    this.#onProblem = onProblem;
  }

  /** Waits for nothing; while Redis is away nobody hears it. */
  publish(event: ClusterEvent): void {
    for (const sent of this.#send(event))
      sent.catch((error) =>
        this.#onProblem(error, "A publication could not be sent"),
      );
  }

  /** See `Announcer`. After the first that could not be sent no further one is tried. */
  async announce(events: readonly ClusterEvent[]): Promise<void> {
    if (events.length <= TURN) await this.#sendAll(events);
    else if (this.#waiting < MAX_WAITING) await this.#sendInTurns(events);
    else throw new BrokerError("overloaded");
  }

  /** Resolves when all that is on its way now has come to Redis, or did not. */
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
    for (const { topics, frame } of this.#frames.of(event))
      for (const topic of topics) {
        const name = this.#link.keys.topic(topic);
        const sent = this.#link.call("spublish", name, frame);
        const over: Promise<void> = sent
          .then(ignore, ignore) // who sends hears of it
          .finally(() => this.#underWay.delete(over));
        this.#underWay.add(over);
        all.push(sent);
      }
    return all;
  }
}

function ignore(): void {}
