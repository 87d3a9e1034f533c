// A device of a user that takes commands: it connects, is shown its inbox, acknowledges in random
// batches, breaks off now and then right after an acknowledgement, and comes back. State: the
// client, what it has not acknowledged yet.

import { setTimeout as pause } from "node:timers/promises";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import type { CommandLedger, Sitting } from "./command-ledger.ts";
import type { Stage } from "./stage.ts";

const TIMEOUT_MS = 120_000;
const MOST_AT_ONCE = 6;

interface Seat {
  readonly client: NativeClient;
  readonly sitting: Sitting;
  taken: number;
}

export interface DeviceParts {
  readonly stage: Pick<Stage, "up" | "clientPort">;
  readonly ledger: CommandLedger;
  readonly random: Random;
}

export class CommandDevice {
  readonly name: string;
  readonly uid: string;
  readonly #parts: DeviceParts;
  #seat: Seat | undefined;
  #due: number[] = [];
  #isWanted = false;

  constructor(name: string, uid: string, parts: DeviceParts) {
    this.name = name;
    this.uid = uid;
    this.#parts = parts;
  }

  /**
   * Takes and acknowledges commands, over restarts of the broker, until `stop`; with `cuts` it
   * breaks off now and then.
   */
  async run(cuts: boolean): Promise<void> {
    this.#isWanted = true;
    while (this.#isWanted) {
      await this.#parts.stage.up();
      try {
        await this.#sit(cuts);
      } catch (error) {
        if (!(error instanceof NativeClientError)) throw error; // else the connection broke
        await pause(5);
      }
    }
    await this.#leave();
  }

  stop(): void {
    this.#isWanted = false;
    this.#seat?.client.kill();
  }

  async #sit(cuts: boolean): Promise<void> {
    const { stage, ledger, random } = this.#parts;
    const { name, uid } = this;
    const sitting = ledger.sit(name, uid);
    const client = await connectNative(undefined, {
      ...{ uid, port: stage.clientPort, timeoutMs: TIMEOUT_MS },
    });
    const seat = { client, sitting, taken: 0 };
    this.#seat = seat;
    this.#due = [];
    try {
      while (this.#isWanted) {
        this.#take(seat);
        if (this.#due.length === 0)
          await client.waitFor(({ pushes }) => pushes.length > seat.taken, "a command");
        else if (cuts && random.below(8) === 0) return this.#cut(seat);
        else await this.#acknowledge(seat);
      }
    } finally {
      await this.#leave();
    }
  }

  #take(seat: Seat): void {
    const { pushes } = seat.client;
    for (const push of pushes.slice(seat.taken)) {
      if (push.kind !== "command" || push.inboxSeq === 0) continue;
      this.#parts.ledger.shown(seat.sitting, push.inboxSeq, push.message);
      this.#due.push(push.inboxSeq);
    }
    seat.taken = pushes.length;
  }

  async #acknowledge({ client, sitting }: Seat): Promise<void> {
    const { ledger } = this.#parts;
    const inboxSeqs = this.#batch();
    try {
      const operation = { kind: "commandack", inboxSeqs } as const;
      const { count } = await client.request("commandack", operation);
      ledger.acknowledged(sitting, inboxSeqs, count);
    } catch (error) {
      ledger.unheard(this.uid, inboxSeqs);
      throw error;
    }
  }

  /** An acknowledgement, and the end of the connection behind it. */
  #cut({ client }: Seat): void {
    const inboxSeqs = this.#batch();
    this.#parts.ledger.unheard(this.uid, inboxSeqs);
    client.raw(encodeOperation({ kind: "commandack", ref: 900, inboxSeqs }));
  }

  #batch(): readonly number[] {
    return this.#due.splice(0, 1 + this.#parts.random.below(MOST_AT_ONCE));
  }

  async #leave(): Promise<void> {
    this.#seat?.client.kill();
    await this.#seat?.client.closed;
  }
}
