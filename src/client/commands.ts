// Handles commands one at a time. A command is acknowledged after all handlers have succeeded. Owns
// the queue, the failed commands that wait for a retry, and the ids of recently handled commands.
// The ids are needed because the server sends a command again if its acknowledgement was lost.

import type { ChannelRef, Message } from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { Command } from "./api.ts";
import type { RequestFunction } from "./connection.ts";
import { isConnectionLost, type JindouError } from "./errors.ts";
import type { Handler } from "./events.ts";
import { receivedCommand } from "./messages.ts";

interface CommandsPorts {
  readonly ask: RequestFunction;
  handlers(): readonly Handler<Command>[];
  onError(error: JindouError): void;
  handlerFailed(error: unknown): void;
}

interface PendingCommand {
  /** Position in the user's inbox. 0 means that the command needs no acknowledgement. */
  inboxSeq: number;
  readonly command: Command;
  failures: number;
  timer?: ReturnType<typeof setTimeout>;
}

/**
 * Maximum number of unhandled commands. Further commands are dropped, and the next session receives
 * them again.
 */
const MAX_OPEN = 10_000;
const MAX_HANDLED = 10_000;
/**
 * Maximum number of retries of a failed command. The retries run after 1, 2, 4, 8 and 16 s. After
 * the last retry, the command is handled again only when a later session receives it.
 */
const MAX_RETRIES = 5;
const RETRY_MS = 1000;
/** Maximum number of inbox positions that the server accepts in one COMMANDACK. */
const MAX_ACKS = 1000;

export class Commands {
  readonly #ports: CommandsPorts;
  readonly #open = new Map<number, PendingCommand>();
  readonly #handled = new BoundedMap<number, true>(MAX_HANDLED);
  #queue: PendingCommand[] = [];
  #acks: number[] = [];
  #isRunning = false;
  #isAcking = false;
  #isClosed = false;

  constructor(ports: CommandsPorts) {
    this.#ports = ports;
  }

  receive(channel: ChannelRef, inboxSeq: number, message: Message): void {
    const { messageId } = message;
    const open = this.#open.get(messageId);
    if (open !== undefined) open.inboxSeq ||= inboxSeq;
    else if (this.#handled.get(messageId)) this.#acknowledge(inboxSeq);
    else if (this.#open.size < MAX_OPEN) {
      const command = receivedCommand(channel, message);
      const pending = { inboxSeq, command, failures: 0 };
      this.#open.set(messageId, pending);
      this.#queue.push(pending);
      this.work();
    }
  }

  /** Starts handling commands. Must be called after a handler is added. */
  work(): void {
    if (!this.#isRunning) void this.#run();
  }

  close(): void {
    this.#isClosed = true;
    this.#queue = [];
    for (const { timer } of this.#open.values()) clearTimeout(timer);
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    let pending = this.#next();
    while (pending !== undefined) {
      await this.#handle(pending);
      pending = this.#next();
    }
    this.#isRunning = false;
  }

  #next(): PendingCommand | undefined {
    return this.#ports.handlers().length > 0 ? this.#queue.shift() : undefined;
  }

  async #handle(pending: PendingCommand): Promise<void> {
    const { command } = pending;
    try {
      for (const handler of this.#ports.handlers()) {
        if (this.#isClosed) return; // another handler closed the client
        await handler(command);
      }
    } catch (error) {
      this.#ports.handlerFailed(error);
      return this.#retryLater(pending);
    }
    this.#open.delete(command.messageId);
    this.#handled.set(command.messageId, true);
    this.#acknowledge(pending.inboxSeq);
  }

  #retryLater(pending: PendingCommand): void {
    pending.failures += 1;
    const isLast = pending.failures > MAX_RETRIES || pending.inboxSeq === 0;
    if (isLast || this.#isClosed) return void this.#open.delete(pending.command.messageId);
    pending.timer = setTimeout(
      () => {
        this.#queue.push(pending);
        this.work();
      },
      RETRY_MS * 2 ** (pending.failures - 1),
    );
  }

  #acknowledge(inboxSeq: number): void {
    if (inboxSeq === 0) return;
    this.#acks.push(inboxSeq);
    if (!this.#isAcking) void this.#sendAcks();
  }

  async #sendAcks(): Promise<void> {
    this.#isAcking = true;
    await Promise.resolve();
    while (this.#acks.length > 0) {
      const inboxSeqs = this.#acks.splice(0, MAX_ACKS);
      try {
        await this.#ports.ask({ kind: "commandack", inboxSeqs });
      } catch (error) {
        // the next session receives the commands again; `ask` rejects only with JindouError
        if (!isConnectionLost(error)) this.#ports.onError(error as JindouError);
      }
    }
    this.#isAcking = false;
  }
}
