// Commands: each is given to the handlers, one after the other, and acknowledged when all of them are through. State: what waits, what
// failed and is tried again, the last ones that are done (the server may give those again when an acknowledgement was lost).

import type { ChannelRef, Message } from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { Command } from "./api.ts";
import type { Ask } from "./connection.ts";
import { asJindouError, isLost, type JindouError } from "./errors.ts";
import type { Handler } from "./events.ts";
import { receivedCommand } from "./messages.ts";

export interface CommandsParts {
  /** Repeats what fails for the moment. */
  readonly ask: Ask;
  handlers(): readonly Handler<Command>[];
  trouble(error: JindouError): void;
}

/** A command by its place in the inbox; 0: nothing to acknowledge. */
interface Entry {
  inboxSeq: number;
  readonly command: Command;
  failures: number;
  timer?: ReturnType<typeof setTimeout>;
}

/** Waiting for their handlers; what comes beyond comes again with the next session. */
const MAX_WAITING = 10_000;
const MAX_DONE = 10_000;
/** A failing handler is called again after 1 s, 2 s, 4 s …; after the last try the next session brings the command again. */
const MAX_FAILURES = 5;
const RETRY_MS = 1000;
/** Most in one acknowledgement. */
const MAX_ACKS = 1000;

export class Commands {
  readonly #parts: CommandsParts;
  /** By messageId, in the order in which they came: those that wait, run, or wait for another try. */
  readonly #open = new Map<number, Entry>();
  readonly #done = new BoundedMap<number, true>(MAX_DONE);
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
    else if (this.#done.get(messageId)) this.#acknowledge(inboxSeq);
    else if (this.#open.size < MAX_WAITING) {
      const command = receivedCommand(channel, message);
      const entry = { inboxSeq, command, failures: 0 };
      this.#open.set(messageId, entry);
      this.#queue.push(entry);
      this.work();
    }
  }

  /** Goes on with what waits; to be called when a handler was added. */
  work(): void {
    if (!this.#isRunning) void this.#run();
  }

  close(): void {
    this.#isClosed = true;
    this.#queue = [];
    for (const { timer } of this.#open.values()) clearTimeout(timer);
  }

  /** Without handlers commands wait. */
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
      this.#parts.trouble(asJindouError(error, "handler_failed"));
      return this.#failed(entry);
    }
    this.#open.delete(command.messageId);
    this.#done.set(command.messageId, true);
    this.#acknowledge(entry.inboxSeq);
  }

  /** Behind the others, after a pause. */
  #failed(entry: Entry): void {
    entry.failures += 1;
    const isLast = entry.failures > MAX_FAILURES || entry.inboxSeq === 0;
    if (isLast || this.#isClosed)
      return void this.#open.delete(entry.command.messageId);
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

  /** One frame at a time: what is through meanwhile goes with the next. */
  async #sendAcks(): Promise<void> {
    this.#isAcking = true;
    await Promise.resolve();
    while (this.#acks.length > 0) {
      const inboxSeqs = this.#acks.splice(0, MAX_ACKS);
      try {
        await this.#parts.ask({ kind: "commandack", inboxSeqs });
      } catch (error) {
        if (!isLost(error)) this.#parts.trouble(error as JindouError); // `ask` rejects with nothing else
        // the next session brings them again
      }
    }
    this.#isAcking = false;
  }
}
