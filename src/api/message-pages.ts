// Reads pages of messages for HTTP calls. A page can contain several megabytes. Therefore, only a
// few pages are read at once, and each page is serialised in slices of the event loop.

import type { Message } from "../broker/model.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { TimeSlice, Turns } from "../lib/time-slice.ts";

/** Maximum number of pages that are read at once. Each may contain 8 MiB of payloads. */
const PAGES_AT_ONCE = 2;

interface Page {
  readonly messages: readonly Message[];
}

export class MessagePages {
  readonly #running = new Semaphore(PAGES_AT_ONCE);
  readonly #turns = new Turns();

  /**
   * Returns the page, and its messages as a JSON array in the same order. Rejects if `read`
   * rejects.
   */
  read<P extends Page>(
    read: () => Promise<P>,
    toJson: (message: Message) => object,
  ): Promise<{ readonly page: P; readonly json: string }> {
    return this.#running.run(async () => {
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
  }
}
