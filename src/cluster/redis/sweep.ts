// Takes the sessions of dead lives out of the directory and tells who watches their users. Found by the index that each life kept of itself.
// Every step may be repeated, and two nodes may do the same at once: what is gone is gone. State: the lives under way.

import { isAway } from "../../broker/errors.ts";
import type { RedisLink } from "../../redis/link.ts";
import type { Life } from "./entry.ts";
import { indexKey } from "./local-sessions.ts";
import type { DirectorySteps } from "./steps.ts";

const AT_ONCE = 256;

export interface SweeperParts {
  readonly link: RedisLink;
  readonly steps: DirectorySteps;
  /** Hears of each user of whom something was taken out. */
  readonly onSwept: (uid: string) => void;
  /** Nothing of the life is left. */
  readonly done: (life: Life) => Promise<void>;
  readonly onProblem: (error: unknown, what: string) => void;
}

export class Sweeper {
  readonly #parts: SweeperParts;
  readonly #underWay = new Map<Life, Promise<void>>();
  #status: "open" | "closed" = "open";

  constructor(parts: SweeperParts) {
    this.#parts = parts;
  }

  /** Begins, unless it is under way. What fails is left to whoever is asked next. */
  sweep(life: Life): void {
    if (this.#status === "closed" || this.#underWay.has(life)) return;
    const run = this.#run(life)
      .catch((error: unknown) => this.#failed(error))
      .finally(() => this.#underWay.delete(life));
    this.#underWay.set(life, run);
  }

  /** Leaves off and waits for what is under way. Safe to call twice. */
  async close(): Promise<void> {
    this.#status = "closed";
    await Promise.all(this.#underWay.values());
  }

  async #run(life: Life): Promise<void> {
    const { link, done } = this.#parts;
    const index = indexKey(link, life);
    let cursor = "0";
    do {
      const [next, uids] = (await link.call(
        ...(["sscan", index, cursor, "COUNT", AT_ONCE] as const),
      )) as [Buffer, Buffer[]];
      await this.#users(life, index, uids.map(String));
      cursor = next.toString();
    } while (cursor !== "0" && this.#status === "open");
    if (this.#status === "closed") return;
    await link.call("del", index);
    await done(life);
  }

  async #users(
    life: Life,
    index: string,
    uids: readonly string[],
  ): Promise<void> {
    const { link, steps, onSwept } = this.#parts;
    if (uids.length === 0) return;
    await Promise.all(
      uids.map(async (uid) => {
        if (await steps.sweep(uid, life)) onSwept(uid);
      }),
    );
    await link.call("srem", index, ...uids);
  }

  #failed(error: unknown): void {
    if (isAway(error)) return;
    this.#parts.onProblem(
      error,
      "The sessions of a dead node could not be removed",
    );
  }
}
