// Commands: handled one after the other, and acknowledged when all handlers have succeeded.
// State: the queue, failed commands that wait for a retry, the ids of the last handled ones (the
// server repeats a command whose acknowledgement was lost).

import type { ChannelRef, Message } from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { Command } from "./api.ts";
import type { Ask } from "./connection.ts";
import { asJindouError, isLost, type JindouError } from "./errors.ts";
import type { Handler } from "./events.ts";
import { receivedCommand } from "./messages.ts";

interface CommandsParts {
  /** Retries what fails temporarily. */
  readonly ask: Ask;
  handlers(): readonly Handler<Command>[];
  onError(error: JindouError): void;
}

interface Entry {
  /** 0: nothing to acknowledge. */
  inboxSeq: number;
  readonly command: Command;
  failures: number;
  timer?: ReturnType<typeof setTimeout>;
}

/** Commands beyond that come again with the next session. */
const MAX_OPEN = 10_000;
const MAX_HANDLED = 10_000;
/** Retries after 1 s, 2 s, 4 s …; after the last one the next session brings the command again. */
const MAX_RETRIES = 5;
const RETRY_MS = 1000;
/** The server's limit for one COMMANDACK. */
const MAX_ACKS = 1000;

export class Commands {
  readonly #parts: CommandsParts;
  /** Commands not handled yet, by messageId, in order of arrival. */
  readonly #open = new Map<number, Entry>();
  readonly #handled = new BoundedMap<number, true>(MAX_HANDLED);
  #queue: Entry[] = [];
  #acks: number[] = [];
  #isRunning = false;
  #isAcking = false;
  #isClosed = false;

  constructor(parts: CommandsParts) {
    this.#parts = parts;
  }

  take(channel: ChannelRef, inboxSeq: number, message: Message): void {
    const { messageId } = message;
    const open = this.#open.get(messageId);
    if (open !== undefined) open.inboxSeq ||= inboxSeq;
    else if (this.#handled.get(messageId)) this.#acknowledge(inboxSeq);
    else if (this.#open.size < MAX_OPEN) {
      const command = receivedCommand(channel, message);
      const entry = { inboxSeq, command, failures: 0 };
      this.#open.set(messageId, entry);
      this.#queue.push(entry);
      this.work();
    }
  }

  /** Handles the queue; must be called when a handler was added: without one commands wait. */
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
    let entry = this.#next();
    while (entry !== undefined) {
      await this.#handle(entry);
      entry = this.#next();
    }
    this.#isRunning = false;
  }

  #next(): Entry | undefined {
    return this.#parts.handlers().length > 0 ? this.#queue.shift() : undefined;
  }

  async #handle(entry: Entry): Promise<void> {
    const { command } = entry;
    try {
      for (const handler of this.#parts.handlers()) await handler(command);
    } catch (error) {
      this.#parts.onError(asJindouError(error, "handler_failed"));
      return this.#failed(entry);
    }
    this.#open.delete(command.messageId);
    this.#handled.set(command.messageId, true);
    this.#acknowledge(entry.inboxSeq);
  }

  /** Other commands go on during the delay. */
  #failed(entry: Entry): void {
    entry.failures += 1;
    const isLast = entry.failures > MAX_RETRIES || entry.inboxSeq === 0;
    if (isLast || this.#isClosed) return void this.#open.delete(entry.command.messageId);
    entry.timer = setTimeout(
      () => {
        this.#queue.push(entry);
        this.work();
      },
      RETRY_MS * 2 ** (entry.failures - 1),
    );
  }

  #acknowledge(inboxSeq: number): void {
    if (inboxSeq === 0) return;
    this.#acks.push(inboxSeq);
    if (!this.#isAcking) void this.#sendAcks();
  }

  /** One frame at a time; acknowledgements made meanwhile share the next one. */
  async #sendAcks(): Promise<void> {
    this.#isAcking = true;
    await Promise.resolve();
    while (this.#acks.length > 0) {
      const inboxSeqs = this.#acks.splice(0, MAX_ACKS);
      try {
        await this.#parts.ask({ kind: "commandack", inboxSeqs });
      } catch (error) {
        // the next session brings the commands again; `ask` rejects with nothing else
        if (!isLost(error)) this.#parts.onError(error as JindouError);
      }
    }
    this.#isAcking = false;
  }
}
