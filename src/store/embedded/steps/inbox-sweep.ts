// Takes commands that expired, and their copies, out of the inboxes. No state.

import type { Tables } from "../engine/database.ts";
import { expiring } from "./commands.ts";
import type { InboxQueue } from "./inbox-queue.ts";
import { commandKey, readCopies } from "./inbox-rows.ts";

/** Commands, and copies of one, removed in one step. */
const COMMANDS = 50;
const COPIES = 1000;

interface InboxSweepParts {
  readonly tables: Pick<Tables, "commands" | "commandCopies">;
  readonly queue: Pick<InboxQueue, "add">;
}

/** Stops early when `isClosed`. Throws `unavailable`. */
export async function sweepInboxes(
  parts: InboxSweepParts,
  nowMs: number,
  isClosed: () => boolean,
): Promise<void> {
  const end = commandKey(nowMs + 1);
  for (;;) {
    const { commands } = parts.tables;
    const keys = [...commands.getKeys({ end, limit: COMMANDS })];
    await removeSome(parts, keys);
    if (keys.length === 0 || isClosed()) return;
  }
}

/** Removes the first of `commands`, and more while that is little work. */
async function removeSome(
  { tables, queue }: InboxSweepParts,
  commands: readonly Buffer[],
): Promise<void> {
  const steps: Promise<void>[] = [];
  const expire = (copies: ReturnType<typeof readCopies>, command?: Buffer) => {
    const { promise, step } = expiring(copies, command);
    queue.add("", step);
    steps.push(promise);
  };
  let size = 0;
  for (const command of commands) {
    const copies = readCopies(tables.commandCopies.get(command));
    for (let at = 0; at < copies.length; at += COPIES)
      expire(copies.slice(at, at + COPIES));
    expire([], command);
    size += copies.length;
    if (size >= COPIES) break;
  }
  await Promise.all(steps);
}
