// A user's device that receives commands. It connects, is pushed the user's inbox and acknowledges
// the commands in random batches. Sometimes it closes the connection right after an acknowledgement
// and connects again.

import { setTimeout as pause } from "node:timers/promises";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import type { CommandLedger, DeviceConnection } from "./command-ledger.ts";
import type { RestartableBroker } from "./restartable-broker.ts";

const TIMEOUT_MS = 120_000;
const MAX_BATCH = 6;

interface ConnectedDevice {
  readonly client: NativeClient;
  readonly connection: DeviceConnection;
  /** Number of pushes already read. */
  readCount: number;
}

export interface DeviceContext {
  readonly broker: Pick<RestartableBroker, "up" | "clientPort">;
  readonly ledger: CommandLedger;
  readonly random: Random;
}

export class CommandDevice {
  readonly name: string;
  readonly uid: string;
  readonly #context: DeviceContext;
  #connected: ConnectedDevice | undefined;
  /** Inbox seqs of commands that were shown and not acknowledged yet. */
  #unacknowledged: number[] = [];
  #isRunning = false;

  constructor(name: string, uid: string, context: DeviceContext) {
    this.name = name;
    this.uid = uid;
    this.#context = context;
  }

  /**
   * Receives and acknowledges commands until `stop`, even across restarts of the broker. With
   * `cuts`, the device sometimes closes its connection after an acknowledgement.
   */
  async run(cuts: boolean): Promise<void> {
    this.#isRunning = true;
    while (this.#isRunning) {
      await this.#context.broker.up();
      try {
        await this.#connectAndReceive(cuts);
      } catch (error) {
        if (!(error instanceof NativeClientError)) throw error; // otherwise the connection broke
        await pause(5);
      }
    }
    await this.#leave();
  }

  stop(): void {
    this.#isRunning = false;
    this.#connected?.client.kill();
  }

  async #connectAndReceive(cuts: boolean): Promise<void> {
    const { broker, ledger, random } = this.#context;
    const { name, uid } = this;
    const connection = ledger.beginConnection(name, uid);
    const client = await connectNative(undefined, {
      ...{ uid, port: broker.clientPort, timeoutMs: TIMEOUT_MS },
    });
    const connected = { client, connection, readCount: 0 };
    this.#connected = connected;
    this.#unacknowledged = [];
    try {
      while (this.#isRunning) {
        this.#readPushes(connected);
        if (this.#unacknowledged.length === 0)
          await client.waitFor(({ pushes }) => pushes.length > connected.readCount, "a command");
        else if (cuts && random.below(8) === 0) return this.#acknowledgeAndClose(connected);
        else await this.#acknowledge(connected);
      }
    } finally {
      await this.#leave();
    }
  }

  #readPushes(connected: ConnectedDevice): void {
    const { pushes } = connected.client;
    for (const push of pushes.slice(connected.readCount)) {
      if (push.kind !== "command" || push.inboxSeq === 0) continue;
      this.#context.ledger.shown(connected.connection, push.inboxSeq, push.message);
      this.#unacknowledged.push(push.inboxSeq);
    }
    connected.readCount = pushes.length;
  }

  async #acknowledge({ client, connection }: ConnectedDevice): Promise<void> {
    const { ledger } = this.#context;
    const inboxSeqs = this.#batch();
    try {
      const operation = { kind: "commandack", inboxSeqs } as const;
      const { count } = await client.request("commandack", operation);
      ledger.acknowledged(connection, inboxSeqs, count);
    } catch (error) {
      ledger.replyLost(this.uid, inboxSeqs);
      throw error;
    }
  }

  /** Sends an acknowledgement. The caller closes the connection before the reply arrives. */
  #acknowledgeAndClose({ client }: ConnectedDevice): void {
    const inboxSeqs = this.#batch();
    this.#context.ledger.replyLost(this.uid, inboxSeqs);
    client.raw(encodeOperation({ kind: "commandack", ref: 900, inboxSeqs }));
  }

  #batch(): readonly number[] {
    return this.#unacknowledged.splice(0, 1 + this.#context.random.below(MAX_BATCH));
  }

  async #leave(): Promise<void> {
    this.#connected?.client.kill();
    await this.#connected?.client.closed;
  }
}
