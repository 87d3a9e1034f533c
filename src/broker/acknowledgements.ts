// Collects the acknowledgements that users send for messages, and writes them to the store in
// batches. The node that decides which users need a push notification reads the acknowledgements
// from the store. State: the acknowledgements that have not been written yet.

import { isTransient } from "./errors.ts";
import type { ChannelKey } from "./model.ts";
import type { PushStore } from "./push-ports.ts";

interface AcknowledgementPorts {
  readonly store: Pick<PushStore, "addAcknowledged">;
  /** Time from the first acknowledgement in a batch until the batch is written. */
  readonly writeMs: number;
  /** Time for which the store keeps an acknowledgement. */
  readonly keepMs: number;
  readonly onError: (error: unknown, what: string) => void;
}

/** Number of acknowledgements at which a batch is written without waiting for `writeMs`. */
const MAX_BATCH = 10_000;

interface PendingMessage {
  readonly key: ChannelKey;
  readonly messageSeq: number;
  readonly uids: string[];
}

export class Acknowledgements {
  readonly #ports: AcknowledgementPorts;
  #pending = new Map<number, PendingMessage>();
  #count = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();

  constructor(ports: AcknowledgementPorts) {
    this.#ports = ports;
  }

  add(
    uid: string,
    message: {
      readonly messageId: number;
      readonly messageSeq: number;
      readonly key: ChannelKey;
    },
  ): void {
    const { messageId, messageSeq, key } = message;
    const pending = this.#pending.get(messageId);
    if (pending === undefined) this.#pending.set(messageId, { key, messageSeq, uids: [uid] });
    else pending.uids.push(uid);
    this.#count += 1;
    if (this.#count >= MAX_BATCH) this.#write();
    else this.#timer ??= setTimeout(() => this.#write(), this.#ports.writeMs).unref();
  }

  async close(): Promise<void> {
    if (this.#count > 0) this.#write();
    await this.#writing;
  }

  #write(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const messages = [...this.#pending.values()];
    this.#pending = new Map();
    this.#count = 0;
    const { store, keepMs, onError } = this.#ports;
    const writing = store.addAcknowledged(messages, keepMs).catch((error: unknown) => {
      // A lost acknowledgement causes at most an unnecessary push notification.
      if (!isTransient(error)) onError(error, "Could not store which users acknowledged messages");
    });
    this.#writing = this.#writing.then(() => writing);
  }
}
