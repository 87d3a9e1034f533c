// Collects the responses to the requests in a batch. The responses are sent as one list, or as
// several lists if they are long.

/**
 * Number of characters above which the collected responses are sent before the batch is complete.
 */
const MAX_COLLECTED = 1_048_576;

export class Batch {
  #expected = 0;
  #collected: string[] = [];
  #length = 0;

  /** Announces one response. All responses must be announced before the first one is added. */
  expect(): void {
    this.#expected += 1;
  }

  /**
   * Adds the response to a request, or `undefined` for a request without a response. Returns the
   * list to send, or `[]` if no list must be sent now.
   */
  answer(response: string | undefined): string | readonly [] {
    this.#expected -= 1;
    if (response !== undefined) {
      this.#collected.push(response);
      this.#length += response.length;
    }
    const isDue = this.#expected === 0 || this.#length > MAX_COLLECTED;
    if (!isDue || this.#collected.length === 0) return [];
    const list = `[${this.#collected.join(",")}]`;
    this.#collected = [];
    this.#length = 0;
    return list;
  }
}
