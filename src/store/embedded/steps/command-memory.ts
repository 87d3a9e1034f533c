// What must be known of commands after a restart, beside their copies: that their ids are taken, and what their retries are answered. No state.

import type { Tables } from "../engine/database.ts";
import { fieldsOf } from "../engine/tables.ts";
import type { CommandStep } from "./commands.ts";
import type { DedupeIndex } from "./dedupe.ts";

const LAST_COMMAND_ID = "lastCommandId";
const VERSION = 1;

/** The greatest id of a stored command: none up to it is given again. */
export function lastCommandId(tables: Pick<Tables, "meta">): number {
  const stored = tables.meta.get(LAST_COMMAND_ID);
  return stored === undefined ? 0 : Number(fieldsOf(stored, VERSION)[0]);
}

/** To be called inside the transaction that keeps `commands`, in any order. */
export function rememberCommands(
  tables: Pick<Tables, "meta">,
  dedupe: Pick<DedupeIndex, "putCommand">,
  commands: readonly CommandStep[],
): void {
  if (commands.length === 0) return;
  let lastId = lastCommandId(tables);
  for (const { message } of commands)
    lastId = Math.max(lastId, message.messageId);
  void tables.meta.put(LAST_COMMAND_ID, [VERSION, lastId]);
  for (const { draft, message } of commands)
    if (draft.clientMsgNo !== "") dedupe.putCommand(message);
}
