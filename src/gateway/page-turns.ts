// The turns in which pages of messages are read: histories that users request, and pages of missed
// messages that sessions catch up with. With the embedded store, a page takes up to 4 ms of the event
// loop, so only a few are read in one turn of the event loop, and users take turns.

import { BrokerError } from "../broker/errors.ts";
import { FairSemaphore } from "../lib/fair-semaphore.ts";

const PAGES_PER_TURN = 2;
/**
 * Maximum number of waiting pages of a user. By default, a user has at most 500: four histories and
 * one page of missed messages in each of 100 sessions.
 */
const MAX_PAGES_WAITING = 1000;

export class PageTurns {
  readonly #turns = new FairSemaphore(
    PAGES_PER_TURN,
    MAX_PAGES_WAITING,
    () =>
      new BrokerError("overloaded", {
        message: "Too many pages of messages of the user are waiting. Try again later.",
      }),
  );

  /**
   * Starts the read in a turn of the user, and resolves with its result. The read holds the turn only
   * while it starts, so that a slow Redis server delays no other user. Throws `overloaded` if too many
   * pages of the user are waiting.
   */
  async read<T>(uid: string, read: () => T): Promise<Awaited<T>> {
    const { work } = await this.#turns.run(uid, () => ({ work: read() }));
    return await work;
  }
}
