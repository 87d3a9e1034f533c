// Reads pages of messages for HTTP calls. A page can contain several megabytes. Therefore, at most
// `PAGES_AT_ONCE` pages are read at once, and each page is serialised in short time slices.

import { BrokerError } from "../broker/errors.ts";
import type { Message } from "../broker/model.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { TimeSlice, Turns } from "../lib/time-slice.ts";
import type { HttpRequest } from "../transport/types.ts";

/** Maximum number of pages that are read at once. A page contains up to 8 MiB of payloads. */
const PAGES_AT_ONCE = 2;
/** Maximum number of calls that wait for their turn to read a page. */
const MAX_WAITING = 500;

interface Page {
  readonly messages: readonly Message[];
}

export class MessagePages {
  readonly #running = new Semaphore(PAGES_AT_ONCE);
  readonly #turns = new Turns();
  /** Number of calls that read or wait, except waiting calls whose caller has disconnected. */
  #calls = 0;

  /**
   * Returns the page, and its messages as a JSON array in the same order. Rejects if `read`
   * rejects, with `overloaded` if `MAX_WAITING` calls already wait, and with `unavailable` if the
   * caller has disconnected before its turn.
   */
  async read<P extends Page>(
    request: Pick<HttpRequest, "onAborted">,
    read: () => Promise<P>,
    toJson: (message: Message) => object,
  ): Promise<{ readonly page: P; readonly json: string }> {
    if (this.#calls >= PAGES_AT_ONCE + MAX_WAITING)
      throw new BrokerError("overloaded", {
        message: "Too many calls wait to read messages on this node; try again later",
      });
    let status: "waiting" | "begun" | "aborted" = "waiting";
    request.onAborted(() => {
      if (status !== "waiting") return;
      status = "aborted";
      this.#calls -= 1;
    });
    this.#calls += 1;
    const isAborted = () => status === "aborted";
    try {
      return await this.#running.run(async () => {
        if (isAborted()) throw new BrokerError("unavailable");
        status = "begun";
        const slice = new TimeSlice(1, this.#turns);
        await slice.yield();
        const page = await read();
        await slice.yield();
        const parts: string[] = [];
        for (const message of page.messages) {
          if (slice.shouldYield()) await slice.yield();
          parts.push(JSON.stringify(toJson(message)));
        }
        return { page, json: `[${parts.join(",")}]` };
      });
    } finally {
      if (!isAborted()) this.#calls -= 1;
    }
  }
}
