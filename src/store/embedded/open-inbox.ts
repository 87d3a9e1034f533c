// Wires the command inboxes. No state of its own.

import type { Publisher } from "../../broker/ports.ts";
import type { Tables } from "./engine/database.ts";
import { rememberCommands } from "./steps/command-memory.ts";
import type { CommandStep } from "./steps/commands.ts";
import { Inbox, type InboxParts } from "./steps/inbox.ts";
import { InboxQueue, type InboxQueueParts } from "./steps/inbox-queue.ts";
import { sweepInboxes } from "./steps/inbox-sweep.ts";

interface OpenInboxParts
  extends Omit<InboxParts, "tables" | "queue">,
    Pick<InboxQueueParts, "maxInbox"> {
  readonly tables: Tables;
  readonly publisher: Publisher;
  readonly onError: (error: Error, what: string) => void;
}

export interface OpenInbox {
  readonly inbox: Inbox;
  /** Removes what expired; stops early when `isClosed`. Throws `unavailable`. */
  sweep(nowMs: number, isClosed: () => boolean): Promise<void>;
  /** Resolves when every call made before it is answered. */
  drain(): Promise<void>;
}

export function openInbox(parts: OpenInboxParts): OpenInbox {
  const { tables, dedupe, publisher, onError } = parts;
  const publish = ({ message, copies, draft }: CommandStep): void => {
    const { origin } = draft;
    try {
      publisher.publish({ kind: "command", message, copies, origin });
    } catch (error) {
      onError(error as Error, "A stored message could not be published"); // a bug in a receiver: the command is stored all the same
    }
  };
  const queue = new InboxQueue({
    ...parts,
    remember: (commands) => rememberCommands(tables, dedupe, commands),
    publish,
  });
  return {
    inbox: new Inbox({ ...parts, queue }),
    sweep: (nowMs, isClosed) =>
      sweepInboxes({ tables, queue }, nowMs, isClosed),
    drain: () => queue.drain(),
  };
}
